#include <stormo/train/estimate/model_pieces.h>

#include <algorithm>
#include <cmath>

#include <stormo/base/dtype.h>
#include <stormo/tensor/memory.h>

namespace stormo::train {
namespace {

bool holds(const std::vector<torch::Tensor>& tensors, const torch::Tensor& t) {
  return std::ranges::any_of(tensors, [&](const torch::Tensor& other) { return other.is_same(t); });
}

std::optional<plan::Split> split_of(const torch::Tensor& parameter, const model::Chain& chain) {
  for (const auto& segment : chain.segments()) {
    for (const auto& item : segment->named_parameters()) {
      if (!item.value().is_same(parameter)) continue;
      const auto splits = segment->split_form().parameters;
      const auto found = splits.find(item.key());
      return found == splits.end() ? std::nullopt : std::optional(found->second);
    }
  }
  return {};
}

}  // namespace

std::vector<plan::Range> pieces_that_fit(const plan::ModelShape& model, int numbers,
                                         std::int64_t memory) {
  const std::vector<const plan::ParameterShape*> shapes = flatten(model);
  const std::vector<std::vector<int>> reads = parameters_read(model);
  std::vector<plan::Range> out;
  std::int64_t held = 0;
  for (int s = 0; s < static_cast<int>(reads.size()); ++s) {
    std::int64_t bytes = 0;
    for (const int p : reads[static_cast<std::size_t>(s)]) {
      const plan::ParameterShape& shape = *shapes[static_cast<std::size_t>(p)];
      bytes += shape.elements * static_cast<std::int64_t>(size_of(shape.dtype)) * numbers;
    }
    if (out.empty() || held + bytes > memory) {
      out.push_back({s, s});
      held = 0;
    }
    out.back().last = s;
    held += bytes;
  }
  return out;
}

ChainPiece::ChainPiece(const model::Chain& whole, plan::Range segments) : Chain("piece") {
  for (int i = segments.first; i <= segments.last; ++i) {
    const auto s = static_cast<std::size_t>(i);
    append(whole.segment_names()[s], whole.segments()[s]);
  }
}

std::vector<BorrowedParameter> borrowed_by(const ChainPiece& piece, const model::Chain& whole) {
  std::vector<BorrowedParameter> out;
  std::vector<torch::Tensor> known = piece.parameters();
  for (const auto& segment : piece.segments()) {
    for (const torch::Tensor& p : segment->borrowed_parameters()) {
      if (holds(known, p)) continue;
      known.push_back(p);
      out.push_back({p, split_of(p, whole)});
    }
  }
  return out;
}

PassingValues::PassingValues(const std::vector<torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor p : parameters) {
    if (tensor::has_memory(p)) continue;
    tensor::set_memory(p, true);
    const double inputs = p.dim() > 1 ? static_cast<double>(p.numel() / p.size(0)) : 1;
    p.uniform_(-1 / std::sqrt(inputs), 1 / std::sqrt(inputs));
    given_.push_back(p);
  }
}

PassingValues::~PassingValues() {
  for (torch::Tensor& p : given_) {
    p.mutable_grad().reset();
    tensor::set_memory(p, false);
  }
}

}  // namespace stormo::train
