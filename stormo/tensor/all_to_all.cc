#include <stormo/tensor/all_to_all.h>

#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <stormo/tensor/bridge.h>

namespace stormo::tensor {

at::Tensor all_to_all(comm::Communicator* ranks, const std::vector<at::Tensor>& to,
                      const std::vector<std::int64_t>& from, const char* what) {
  const std::int64_t arriving = std::accumulate(from.begin(), from.end(), std::int64_t{0});
  if (ranks == nullptr) return at::zeros({arriving}, to.front().options());
  std::vector<std::int64_t> counts;
  for (const at::Tensor& t : to) counts.push_back(t.numel());
  const at::Tensor in = at::cat(to);
  const at::Tensor out = at::empty({arriving}, in.options());
  throw_if_error(ranks->all_to_all(buffer_of(in), counts, buffer_of(out), from).within(what));
  return out;
}

}  // namespace stormo::tensor
