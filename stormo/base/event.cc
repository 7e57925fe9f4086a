#include <stormo/base/event.h>

namespace stormo {

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kCommunication: return "communication";
    case Lane::kWait: return "wait";
    case Lane::kData: return "data";
  }
  return "unknown";
}

}  // namespace stormo
