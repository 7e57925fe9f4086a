#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include <c10/util/Exception.h>

#include <stormo/c10d/operands.h>
#include <stormo/comm/request.h>

// The arguments of PyTorch's calls, for the sources of StormoBackend.
namespace stormo::c10d {

inline comm::Request request(comm::OperationKind kind, const comm::Buffer& in,
                             const comm::Buffer& out, Rank root = 0) {
  comm::Request r;
  r.kind = kind;
  r.in = {&in, 1};
  r.out = {&out, 1};
  r.root = root;
  return r;
}

/// The list of a call that PyTorch makes with exactly one.
template <class T>
T& only(std::vector<T>& list, const char* what) {
  TORCH_CHECK_VALUE(list.size() == 1, "stormo: ", list.size(), " ", what, "; one is expected");
  return list.front();
}

/// Equal parts need no list of their sizes.
inline bool are_equal(const std::vector<std::int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

inline std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

inline void check_same_type(const std::vector<at::Tensor>& tensors, const at::Tensor& as) {
  for (const at::Tensor& t : tensors) {
    check_dense(t);
    TORCH_CHECK_VALUE(t.scalar_type() == as.scalar_type(), "stormo: tensors of types ",
                      as.scalar_type(), " and ", t.scalar_type(), " in one call");
  }
}

inline void check_results(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) check_result(t);
}

/// Copies the parts of `whole`, one after the other, into tensors.
inline void take_apart(const at::Tensor& whole, const std::vector<at::Tensor>& tensors) {
  const at::Tensor flat = whole.view({-1});
  std::int64_t begin = 0;
  for (const at::Tensor& t : tensors) {
    assign(t, flat.narrow(0, begin, t.numel()));
    begin += t.numel();
  }
}

/// In bytes where Stormo has no such type.
inline std::vector<std::int64_t> in_units(std::vector<std::int64_t> counts,
                                          const at::Tensor& elements, const comm::Buffer& buffer) {
  if (buffer.count != elements.numel()) {
    for (std::int64_t& n : counts) n *= static_cast<std::int64_t>(elements.itemsize());
  }
  return counts;
}

}  // namespace stormo::c10d
