#include <stormo/transport/tcp/stripes.h>

namespace stormo::transport {

Stripes::Stripes(Progress* whole, std::size_t bytes, int parts) : whole_(whole) {
  for (int i = 0; i < parts; ++i) {
    parts_.emplace_back(*this, begin_of(bytes, i + 1, parts) - begin_of(bytes, i, parts));
  }
}

void Stripes::report() {
  std::size_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += part.done;
    if (part.done < part.size) break;
  }
  whole_->received(bytes);
}

}  // namespace stormo::transport
