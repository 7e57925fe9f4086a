#include <stormo/comm/operation/outcome.h>

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>

#include <stormo/base/printable.h>

namespace stormo::comm {
namespace {

std::string type_of_exception() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "exception";
  char* const readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, nullptr);
  std::string name = readable != nullptr ? readable : type->name();
  std::free(readable);
  return name;
}

}  // namespace

Status status_of_exception() {
  try {
    throw;
  } catch (const Error& e) {
    return e.status();
  } catch (const std::exception& e) {
    return {Code::kException, fmt::format("{}: {}", type_of_exception(), quoted_text(e.what()))};
  } catch (...) {
    return {Code::kException, type_of_exception()};
  }
}

}  // namespace stormo::comm
