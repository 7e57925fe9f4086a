#include <stormo/train/reduction/reduce_rows.h>

#include <cstring>
#include <span>

#include <stormo/comm/sparse_rows.h>
#include <stormo/tensor/bridge.h>

namespace stormo::train {

Status reduce_rows(comm::Communicator& ranks, const torch::Tensor& p, double share) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = p.mutable_grad();
  torch::Tensor indices = torch::empty({0}, torch::kInt64);
  torch::Tensor values = torch::empty({0, p.size(1)}, p.options().requires_grad(false));
  if (gradient.defined()) {
    const torch::Tensor rows = (gradient.is_sparse() ? gradient : gradient.to_sparse(1)).coalesce();
    indices = rows.indices().select(0, 0).contiguous();
    values = rows.values().mul(share).contiguous();
  }
  const auto count = static_cast<std::size_t>(indices.numel());
  STORMO_ASSIGN_OR_RETURN(
      const comm::Rows sum,
      comm::all_reduce_rows(ranks, {indices.const_data_ptr<std::int64_t>(), count},
                            tensor::buffer_of(values), p.size(1), p.size(0), comm::ReduceOp::kSum));
  const auto num_rows = sum.dense ? p.size(0) : static_cast<std::int64_t>(sum.indices.size());
  torch::Tensor out = torch::empty({num_rows, p.size(1)}, values.options());
  std::memcpy(out.mutable_data_ptr(), sum.values.data(), sum.values.size());
  const torch::Tensor where =
      sum.dense ? torch::arange(num_rows, torch::kInt64)
                : torch::tensor(at::ArrayRef<std::int64_t>(sum.indices), torch::kInt64);
  gradient = torch::sparse_coo_tensor(where.unsqueeze(0), out, p.sizes())._coalesced_(true);
  return {};
}

}  // namespace stormo::train
