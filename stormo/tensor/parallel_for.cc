#include <stormo/tensor/parallel_for.h>

#include <algorithm>

#include <ATen/TensorIterator.h>
#include <ATen/ops/arange.h>

namespace stormo::tensor {

void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t parts = (count + grain - 1) / grain;
  if (parts == 1) return body(0, count);
  // one element per part, whose value is the part's number
  const at::Tensor numbers = at::arange(parts, at::kLong);
  at::TensorIterator::borrowing_nullary_op(numbers).for_each(
      [&](char** data, const std::int64_t*, std::int64_t size, std::int64_t /*rows: 1*/) {
        const std::int64_t first = *reinterpret_cast<const std::int64_t*>(data[0]);
        body(first * grain, std::min((first + size) * grain, count));
      },
      /*grain_size=*/1);
}

}  // namespace stormo::tensor
