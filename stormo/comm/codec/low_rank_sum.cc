#include <stormo/comm/codec/low_rank_sum.h>

#include <algorithm>

#include <stormo/codec/codec.h>

namespace stormo::comm {
namespace {

constexpr std::int64_t kBytes = sizeof(float);

std::int64_t numbers_of(const std::vector<codec::MatrixShape>& gradients) {
  std::int64_t out = 0;
  for (const codec::MatrixShape& g : gradients) out += g.numbers();
  return out;
}

/// Replaces a message by the sum of those of all ranks.
Status add_up(std::byte* message, std::int64_t numbers, const EncodedSum::Perform& perform) {
  const Buffer buffer{message, numbers, DType::kFloat32};
  return perform({.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}});
}

std::span<float> as_floats(std::byte* message, std::int64_t numbers) {
  return {reinterpret_cast<float*>(message), static_cast<std::size_t>(numbers)};
}

}  // namespace

LowRankSum::LowRankSum(Communicator& world, const std::vector<codec::MatrixShape>& gradients,
                       int matrix_rank)
    : EncodedSum(world, to_string(Codec::kPowerSgd), numbers_of(gradients)),
      form_(gradients, matrix_rank),
      lost_(static_cast<std::size_t>(form_.numbers())),
      right_(static_cast<std::size_t>(form_.right_numbers())),
      own_right_(right_.size()),
      left_message_(allocate(form_.left_numbers() * kBytes)),
      right_message_(allocate(form_.right_numbers() * kBytes)) {}

std::vector<EncodedSum::Kept> LowRankSum::kept() {
  std::vector<Kept> out = {{.name = "", .numbers = lost_, .rows = 1}};
  if (!right_.empty()) out.push_back({.name = "right", .numbers = right_, .rows = 1});
  return out;
}

// What was lost changes at the end: a sum that fails has lost nothing.
Status LowRankSum::sum(const Request& request, const Perform& perform) {
  const std::span<float> left = as_floats(left_message_.get(), form_.left_numbers());
  const std::span<float> right = as_floats(right_message_.get(), form_.right_numbers());
  const auto* const terms = static_cast<const float*>(request.in.front().data);
  const std::span<float> values(static_cast<float*>(request.out.front().data), lost_.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = terms[i] + lost_[i];
  form_.prepare_right(right_, sums());
  form_.make_left(values, right_, left);
  STORMO_RETURN_IF_ERROR(add_up(left_message_.get(), form_.left_numbers(), perform));
  if (!right.empty()) {
    form_.orthonormalise_left(left);
    form_.make_right(values, left, own_right_);
    std::ranges::copy(own_right_, right.begin());
    STORMO_RETURN_IF_ERROR(add_up(right_message_.get(), form_.right_numbers(), perform));
  }
  form_.deliver(left, own_right_, right, values, lost_);
  std::ranges::copy(right, right_.begin());
  return {};
}

}  // namespace stormo::comm
