#include <stormo/comm/codec/adaptive_sum.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace stormo::comm {

AdaptiveSum::AdaptiveSum(Communicator& world, const std::vector<codec::MatrixShape>& gradients)
    : EncodedSum(world, "adasum", codec::Adasum(gradients, world.size()).numbers()),
      form_(gradients, world.size()) {
  const auto bytes = world.size() * form_.part_numbers() * static_cast<std::int64_t>(sizeof(float));
  whole_ = allocate(bytes);
  terms_ = allocate(bytes);
  if (form_.levels() > 0) products_.resize(static_cast<std::size_t>(form_.num_products(0)));
}

Status AdaptiveSum::sum(const Request& request, const Perform& perform) {
  const std::int64_t part = form_.part_numbers(), all = part * ranks();
  const Buffer whole{whole_.get(), all, DType::kFloat32};
  const Buffer terms{terms_.get(), all, DType::kFloat32};
  auto* const numbers = reinterpret_cast<float*>(whole_.get());
  std::copy_n(static_cast<const float*>(request.in.front().data), count(), numbers);
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllToAll, .in = {&whole, 1}, .out = {&terms, 1}}));
  const std::span<float> own(reinterpret_cast<float*>(terms_.get()), static_cast<std::size_t>(all));
  for (int level = 0; level < form_.levels(); ++level) {
    const auto size = static_cast<std::size_t>(form_.num_products(level));
    const std::span<double> products = std::span(products_).first(size);
    form_.multiply(level, world().rank(), own, products);
    const Buffer sums = products;
    STORMO_RETURN_IF_ERROR(
        perform({.kind = OperationKind::kAllReduce, .in = {&sums, 1}, .out = {&sums, 1}}));
    form_.combine(level, world().rank(), products, own);
  }
  const Buffer combined{terms_.get(), part, DType::kFloat32};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllGather, .in = {&combined, 1}, .out = {&whole, 1}}));
  std::copy_n(numbers, count(), static_cast<float*>(request.out.front().data));
  return {};
}

}  // namespace stormo::comm
