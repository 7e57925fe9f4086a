// Operations that give each rank a part.
#include <stormo/c10d/arguments.h>
#include <stormo/c10d/backend.h>
#include <stormo/tensor/allocator.h>

namespace stormo::c10d {

using ::c10d::OpType;
using comm::OperationKind;
using comm::Request;

/// A copy of the tensors' elements as one piece of memory, or the memory that they are already.
at::Tensor StormoBackend::put_together(const Tensors& tensors) {
  at::Tensor whole = adjacent(tensors);
  if (whole.defined()) return whole;
  whole = new_memory(group().arena(), {sum(counts_of(tensors))}, tensors.front().options());
  std::int64_t begin = 0;
  for (const at::Tensor& t : tensors) {
    assign(whole.narrow(0, begin, t.numel()), in_order(t));
    begin += t.numel();
  }
  return whole;
}

StormoBackend::WorkPtr StormoBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const ::c10d::ScatterOptions& opts) {
  const at::Tensor output = only(outputs, "output tensors");
  check_rank(opts.rootRank, "root");
  check_dense(output);
  const bool is_root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(is_root || inputs.empty(), "stormo: only the root of a scatter has inputs");
  const Tensors parts = is_root ? only(inputs, "lists of input tensors") : Tensors();
  TORCH_CHECK_VALUE(!is_root || parts.size() == static_cast<std::size_t>(getSize()),
                    "stormo: ", parts.size(), " input tensors for ", getSize(), " ranks");
  for (const at::Tensor& t : parts) {
    check_same_type({t}, output);
    TORCH_CHECK_VALUE(t.numel() == output.numel(), "stormo: an input of ", t.numel(),
                      " elements for outputs of ", output.numel());
  }
  auto work = start(OpType::SCATTER, "scatter", opts, parts, outputs);
  const at::Tensor out = in_order_unread(output);
  const at::Tensor whole =
      is_root ? apart(put_together(parts), out, getRank() * output.numel()) : at::Tensor();
  work->keep(out);
  work->keep(whole);
  const comm::Buffer to = copied(out);
  const comm::Buffer from = is_root ? copied(whole) : comm::Buffer(nullptr, 0, to.dtype);
  std::function<void()> after;
  if (!out.is_same(output)) after = [=] { assign(output, out); };
  work->perform(group(),
                request(OperationKind::kScatter, from, to, static_cast<Rank>(opts.rootRank)),
                std::move(after));
  work->seal();
  return work;
}

/// `whole` is in order, and stays as it is. `counts`: elements of each rank's part, none if equal.
void StormoBackend::scatter_from(StormoWork& work, const at::Tensor& output,
                                 const at::Tensor& whole, const std::vector<std::int64_t>& counts,
                                 const ::c10d::ReduceOp& op) {
  // among the ranks of a host every rank reads the parts of the others where they are; between
  // hosts a rank's whole takes up partial sums
  const bool only_read =
      group().cross_size() == 1 && whole.nbytes() >= tensor::kArenaThresholdBytes;
  at::Tensor in = whole;
  if (multiplies_first(op)) {
    in = multiplied(whole, op);
  } else if (!only_read) {
    in = new_memory(group().arena(), whole.sizes(), whole.options());
    assign(in, whole);
  }
  const at::Tensor out = in_order_unread(output);
  in = apart(in, out,
             counts.empty() ? getRank() * out.numel()
                            : std::accumulate(counts.begin(), counts.begin() + getRank(), 0L));
  work.keep(in);
  work.keep(out);
  const Arithmetic how = arithmetic_of(op.op_, in.scalar_type());
  const comm::Buffer from = reduced(in, how), to = reduced(out, how);
  std::vector<std::int64_t> parts = counts;
  for (std::int64_t& n : parts) n *= how.parts;
  Request r = request(OperationKind::kReduceScatter, from, to);
  r.reduction = how.op;
  if (!are_equal(parts)) r.counts = parts;
  if (group().cross_size() == 1 && only_read) r.algorithm = "direct_reduce_scatter";
  std::function<void()> after;
  if (!out.is_same(output)) after = [=] { assign(output, out); };
  work.perform(group(), r, std::move(after));
}

StormoBackend::WorkPtr StormoBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const ::c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "output tensors");
  const Tensors& parts = only(inputs, "lists of input tensors");
  check_dense(output);
  check_same_type(parts, output);
  TORCH_CHECK_VALUE(parts.size() == static_cast<std::size_t>(getSize()), "stormo: ", parts.size(),
                    " input tensors for ", getSize(), " ranks");
  arithmetic_of(opts.reduceOp.op_, output.scalar_type());
  auto work = start(OpType::REDUCE_SCATTER, "reduce_scatter", opts, parts, outputs);
  scatter_from(*work, output, put_together(parts), counts_of(parts), opts.reduceOp);
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const ::c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

StormoBackend::WorkPtr StormoBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "stormo: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_same_type({inputs[i], outputs[i]}, inputs[i]);
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * getSize(), "stormo: an input of ",
                      inputs[i].numel(), " elements for ", getSize(), " outputs of ",
                      outputs[i].numel());
    arithmetic_of(opts.reduceOp.op_, inputs[i].scalar_type());
  }
  auto work = start(OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", opts, inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    scatter_from(*work, outputs[i], in_order(inputs[i]), {}, opts.reduceOp);
  }
  work->seal();
  return work;
}

}  // namespace stormo::c10d
