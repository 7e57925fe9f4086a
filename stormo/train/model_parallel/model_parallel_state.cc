// What a rank saves of a model that is cut over ranks, and reads again.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/train/model_parallel/model_parallel_store.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/slice_pieces.h>

namespace stormo::train {
namespace {

/// The parameter of a piece: its own name, or of its state "optimizer.<slot>.<parameter>".
std::string_view parameter_of(std::string_view piece) {
  if (!piece.starts_with("optimizer.")) return piece;
  return piece.substr(piece.find('.', piece.find('.') + 1) + 1);
}

/// Whether a piece of state is one number, not of the form of its parameter.
bool is_step_count(std::string_view piece) { return piece.starts_with("optimizer.step."); }

}  // namespace

bool ModelParallelStore::has_first_units(const Parameter& p) const {
  if (!split_) return true;
  if (!p.slice.defined()) return split_->part().index == 0;
  const plan::Share mine = share(p.split, split_->part().parts, split_->part().index);
  return mine.begin == 0 && mine.size() > 0;
}

std::vector<TensorPiece> ModelParallelStore::own_pieces() const {
  if (shards_ != nullptr) return shards_->pieces();
  std::vector<TensorPiece> out;
  if (!saves_) return out;
  if (served_ != nullptr) out = served_->pieces();
  for (const Parameter& p : parameters_) {
    const bool has_it = served_ != nullptr && p.named.tensor.requires_grad();
    if (!has(p) || has_it) continue;
    const torch::Tensor values = p.slice.defined() ? p.slice : p.named.tensor.detach();
    out.push_back({.name = p.named.name,
                   .shape = values.sizes().vec(),
                   .begin = 0,
                   .end = values.numel(),
                   .values = values.flatten()});
  }
  if (served_ != nullptr) return out;
  const std::vector<TensorPiece> state = fused_->state_pieces();
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

std::vector<TensorPiece> ModelParallelStore::pieces() const {
  std::vector<TensorPiece> out;
  for (TensorPiece& piece : own_pieces()) {
    const Parameter& p = parameter(parameter_of(piece.name));
    const bool is_equal = is_step_count(piece.name);  // on all ranks of a stage that have some of p
    const bool counts = is_equal ? has_first_units(p) : is_first(p);
    if (!is_own(p) || !counts) continue;
    if (!p.slice.defined() || is_equal) {
      out.push_back(std::move(piece));
      continue;
    }
    const auto of_whole =
        pieces_of_whole(piece, p.slice.sizes().vec(), p.whole, p.split, split_->part());
    out.insert(out.end(), of_whole.begin(), of_whole.end());
  }
  return out;
}

Status ModelParallelStore::load_state(const ReadState& read) {
  const ReadState read_slice = [&](const std::string& name, std::int64_t begin,
                                   std::int64_t end) -> Result<torch::Tensor> {
    const Parameter& p = parameter(parameter_of(name));
    if (!p.slice.defined() || is_step_count(name)) return read(name, begin, end);
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor all,
                            read(name, 0, c10::multiply_integers(p.whole)));
    if (!all.defined()) return all;
    return tensor::slice(all.view(p.whole), p.split, split_->part()).flatten().slice(0, begin, end);
  };
  if (served_ != nullptr) return served_->load_state(read_slice);
  return shards_ != nullptr ? shards_->load_state(read_slice) : fused_->load_state(read_slice);
}

}  // namespace stormo::train
