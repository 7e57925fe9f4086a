// Operations in which every rank has a part for every other.
#include <stormo/c10d/arguments.h>
#include <stormo/c10d/backend.h>

namespace stormo::c10d {

using ::c10d::OpType;
using comm::OperationKind;
using comm::Request;

namespace {

/// Elements that go to or come from each rank: `sizes` are numbers of rows, none means equal parts.
std::vector<std::int64_t> parts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                                   int ranks) {
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % ranks == 0, "stormo: a tensor of shape ",
                      tensor.sizes(), " is not ", ranks,
                      " equal parts along its first dimension; say how large they are");
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), tensor.numel() / ranks);
  }
  TORCH_CHECK_VALUE(sizes.size() == static_cast<std::size_t>(ranks), "stormo: ", sizes.size(),
                    " sizes of parts for ", ranks, " ranks");
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  TORCH_CHECK_VALUE(sum(sizes) == rows, "stormo: parts of ", sum(sizes), " rows of a tensor of ",
                    rows);
  std::vector<std::int64_t> counts;
  for (const std::int64_t n : sizes) counts.push_back(rows == 0 ? 0 : n * (tensor.numel() / rows));
  return counts;
}

}  // namespace

StormoBackend::WorkPtr StormoBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<std::int64_t>& output_sizes,
                                                    std::vector<std::int64_t>& input_sizes,
                                                    const ::c10d::AllToAllOptions& opts) {
  check_same_type({input, output}, input);
  const auto sent = parts_of(input, input_sizes, getSize());
  const auto received = parts_of(output, output_sizes, getSize());
  auto work = start(OpType::ALLTOALL_BASE, "all_to_all", opts, {input}, {output});
  const at::Tensor out = in_order_unread(output);
  const at::Tensor in = apart(in_order(input), out);
  work->keep(in);
  work->keep(out);
  const comm::Buffer from = copied(in), to = copied(out);
  const auto counts = in_units(sent, in, from);
  const auto out_counts = in_units(received, out, to);
  Request r = request(OperationKind::kAllToAll, from, to);
  r.counts = counts;  // other ranks may give sizes, also if those here are equal
  r.out_counts = out_counts;
  std::function<void()> after;
  if (!out.is_same(output)) after = [=] { assign(output, out); };
  work->perform(group(), r, std::move(after));
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const ::c10d::AllToAllOptions& opts) {
  const auto ranks = static_cast<std::size_t>(getSize());
  TORCH_CHECK_VALUE(inputs.size() == ranks && outputs.size() == ranks, "stormo: ", inputs.size(),
                    " input and ", outputs.size(), " output tensors for ", ranks, " ranks");
  check_same_type(inputs, inputs.front());
  check_same_type(outputs, inputs.front());
  auto work = start(OpType::ALLTOALL, "all_to_all", opts, inputs, outputs);
  at::Tensor in = put_together(inputs);
  at::Tensor out = adjacent(outputs);
  std::function<void()> after;
  if (!out.defined()) {
    check_results(outputs);
    out = new_memory(group().arena(), {sum(counts_of(outputs))}, in.options());
    after = [out, outputs] { take_apart(out, outputs); };
  }
  in = apart(in, out);
  work->keep(in);
  work->keep(out);
  const comm::Buffer from = copied(in), to = copied(out);
  const auto counts = in_units(counts_of(inputs), in, from);
  const auto out_counts = in_units(counts_of(outputs), out, to);
  Request r = request(OperationKind::kAllToAll, from, to);
  r.counts = counts;
  r.out_counts = out_counts;
  work->perform(group(), r, std::move(after));
  work->seal();
  return work;
}

}  // namespace stormo::c10d
