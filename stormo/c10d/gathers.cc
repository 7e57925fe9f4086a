// Operations whose result is the ranks' tensors, one after the other.
#include <stormo/c10d/arguments.h>
#include <stormo/c10d/backend.h>

namespace stormo::c10d {

using ::c10d::OpType;
using comm::OperationKind;
using comm::Request;

/// `outputs` are one tensor for each rank, or none where there is no result.
void StormoBackend::gather_into(StormoWork& work, const Tensors& outputs, const at::Tensor& input,
                                OperationKind kind, Rank root) {
  at::Tensor in = in_order(input);
  if (outputs.empty()) {
    work.keep(in);
    const comm::Buffer from = copied(in), none(nullptr, 0, from.dtype);
    return work.perform(group(), request(kind, from, none, root));
  }
  at::Tensor whole = adjacent(outputs);
  const std::vector<std::int64_t> elements = counts_of(outputs);
  std::function<void()> after;
  if (!whole.defined()) {
    check_results(outputs);
    whole = new_memory(group().arena(), {sum(elements)}, in.options());
    after = [whole, outputs] { take_apart(whole, outputs); };
  }
  in = apart(in, whole, std::accumulate(elements.begin(), elements.begin() + getRank(), 0L));
  work.keep(in);
  work.keep(whole);
  const comm::Buffer from = copied(in), to = copied(whole);
  const std::vector<std::int64_t> counts = in_units(elements, whole, to);
  Request r = request(kind, from, to, root);
  if (!are_equal(elements)) r.counts = counts;
  work.perform(group(), r, std::move(after));
}

StormoBackend::WorkPtr StormoBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const ::c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "input tensors");
  const Tensors& parts = only(outputs, "lists of output tensors");
  TORCH_CHECK_VALUE(parts.size() == static_cast<std::size_t>(getSize()), "stormo: ", parts.size(),
                    " output tensors for ", getSize(), " ranks");
  check_dense(input);
  check_same_type(parts, input);
  auto work = start(OpType::ALLGATHER, "all_gather", opts, inputs, parts);
  gather_into(*work, parts, input, OperationKind::kAllGather, 0);
  work->seal();
  return work;
}

void StormoBackend::gather_whole(StormoWork& work, const at::Tensor& output,
                                 const at::Tensor& input) {
  const at::Tensor out = in_order_unread(output);
  const at::Tensor in = apart(in_order(input), out, getRank() * input.numel());
  work.keep(in);
  work.keep(out);
  const comm::Buffer from = copied(in), to = copied(out);
  std::function<void()> after;
  if (!out.is_same(output)) after = [=] { assign(output, out); };
  work.perform(group(), request(OperationKind::kAllGather, from, to), std::move(after));
}

StormoBackend::WorkPtr StormoBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::AllgatherOptions& opts) {
  check_same_type({input, output}, input);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), "stormo: an output of ",
                    output.numel(), " elements for ", getSize(), " inputs of ", input.numel());
  auto work = start(OpType::_ALLGATHER_BASE, "_all_gather_base", opts, {input}, {output});
  gather_whole(*work, output, input);
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                          Tensors& inputs,
                                                          const ::c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(getSize()),
                    "stormo: ", outputs.size(), " lists of output tensors for ", getSize(),
                    " ranks");
  Tensors results;
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "stormo: ", of_rank.size(),
                      " outputs of a rank for ", inputs.size(), " inputs");
    results.insert(results.end(), of_rank.begin(), of_rank.end());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i]);
    for (const Tensors& of_rank : outputs) check_same_type({of_rank[i]}, inputs[i]);
  }
  auto work = start(OpType::ALLGATHER_COALESCED, "all_gather", opts, inputs, results);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensors& of_rank : outputs) parts.push_back(of_rank[i]);
    gather_into(*work, parts, inputs[i], OperationKind::kAllGather, 0);
  }
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "stormo: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_same_type({inputs[i], outputs[i]}, inputs[i]);
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * getSize(), "stormo: an output of ",
                      outputs[i].numel(), " elements for ", getSize(), " inputs of ",
                      inputs[i].numel());
  }
  auto work = start(OpType::COALESCED, "all_gather_into_tensor", opts, inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) gather_whole(*work, outputs[i], inputs[i]);
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const ::c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs, "input tensors");
  check_rank(opts.rootRank, "root");
  check_dense(input);
  const bool is_root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(is_root || outputs.empty(), "stormo: only the root of a gather has outputs");
  Tensors parts = is_root ? only(outputs, "lists of output tensors") : Tensors();
  TORCH_CHECK_VALUE(!is_root || parts.size() == static_cast<std::size_t>(getSize()),
                    "stormo: ", parts.size(), " output tensors for ", getSize(), " ranks");
  for (const at::Tensor& t : parts) {
    check_same_type({t}, input);
    TORCH_CHECK_VALUE(t.numel() == input.numel(), "stormo: an output of ", t.numel(),
                      " elements for inputs of ", input.numel());
  }
  auto work = start(OpType::GATHER, "gather", opts, inputs, parts);
  gather_into(*work, parts, input, OperationKind::kGather, static_cast<Rank>(opts.rootRank));
  work->seal();
  return work;
}

}  // namespace stormo::c10d
