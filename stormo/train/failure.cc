#include <stormo/train/failure.h>

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>

#include <c10/util/Exception.h>

namespace stormo::train {
namespace {

std::string current_exception_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "exception";
  int status = 0;
  char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : type->name();
  std::free(readable);
  return name;
}

Status described(const std::string& text) {
  return Status(Code::kException, current_exception_type() + (text.empty() ? "" : ": ") + text);
}

}  // namespace

Status failure_of_current_exception() {
  try {
    throw;
  } catch (const Error& e) {
    return e.status();
  } catch (const c10::Error& e) {
    return described(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return described(e.what());
  } catch (...) {
    return described("");
  }
}

}  // namespace stormo::train
