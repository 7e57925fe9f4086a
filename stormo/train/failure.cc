#include <stormo/train/failure.h>

#include <string>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <stormo/base/printable.h>
#include <stormo/comm/operation/outcome.h>

namespace stormo::train {

Status failure_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& e) {
    return Status(Code::kException,
                  c10::demangle(typeid(e).name()) + ": " + quoted_text(e.what_without_backtrace()));
  } catch (...) {
    return comm::status_of_exception();
  }
}

}  // namespace stormo::train
