#include <stormo/model/dense.h>

#include <torch/nn/modules/linear.h>

namespace stormo::model {

Dense::Dense(std::int64_t in, std::int64_t out, Activation activation, DenseCut cut,
             std::optional<DenseMap> map, bool sends_loss)
    : Segment("Dense"),
      in_(in),
      out_(out),
      activation_(activation),
      cut_(cut),
      map_(map),
      sends_loss_(sends_loss) {
  const auto linear = register_module("linear", torch::nn::Linear(in, out));
  weight_ = linear->weight;
  bias_ = linear->bias;
}

torch::Tensor Dense::forward(torch::Tensor x) {
  x = x.flatten(1);
  const bool cut = ranks() != nullptr;
  if (map_ && grid() != nullptr) {
    x = sum_of_places(x) + bias_;
  } else if (cut && cut_ != DenseCut::kByOutputs && cut_ != DenseCut::kNone) {
    if (cut_ == DenseCut::kByOwnInputs) {
      const plan::Share mine = ranks()->share(in_);
      x = tensor::begin_split(x, ranks()).narrow(1, mine.begin, mine.size());
    }
    x = tensor::end_split(at::linear(x, weight_), ranks()) + bias_;  // the bias once
  } else {
    if (cut_ == DenseCut::kByOutputs) x = tensor::begin_split(x, ranks());
    x = at::linear(x, weight_, bias_);
  }
  return activation_ == Activation::kRelu ? torch::relu(x) : x;
}

/// With the columns of the weight for the places that are here.
torch::Tensor Dense::sum_of_places(const torch::Tensor& x) const {
  const plan::Share rows = grid()->rows().share(map_->height);
  const plan::Share columns = grid()->columns().share(map_->width);
  const torch::Tensor weight = weight_.unflatten(1, {map_->channels, map_->height, map_->width})
                                   .narrow(2, rows.begin, rows.size())
                                   .narrow(3, columns.begin, columns.size())
                                   .flatten(1);
  return tensor::sum_over_places(at::linear(x, weight), *grid());
}

PlaceForm Dense::place_form() const {
  if (!map_ || cut_ == DenseCut::kByRows) return {};  // nothing in front of it has parts
  return {.windows = {{map_->channels, map_->height, map_->width}}, .norms = {}, .sum = out_};
}

SplitForm Dense::split_form() const {
  SplitForm out;
  switch (cut_) {
    case DenseCut::kNone: break;
    case DenseCut::kByOutputs:
      out.parameters = {{"linear.weight", {.units = out_}}, {"linear.bias", {.units = out_}}};
      out.sums.backward = {in_};
      out.splits_output = true;
      break;
    case DenseCut::kByOwnInputs: out.sums.backward = {in_}; [[fallthrough]];
    case DenseCut::kByInputs:
      out.parameters = {{"linear.weight", {.dim = 1, .units = in_}}};
      out.sums.forward = {out_};
      break;
    case DenseCut::kByRows:  // of each channel
      out.parameters = {
          {"linear.weight",
           {.dim = 1, .blocks = static_cast<int>(map_->channels), .units = map_->height}}};
      out.sums.forward = {out_};
      break;
  }
  if (sends_loss_) out.sums.loss = {out_ + 1};
  return out;
}

DenseCut cut_of_layer(std::size_t index, std::size_t count) {
  if (index % 2 == 1) return DenseCut::kByInputs;
  return index + 1 == count ? DenseCut::kByOwnInputs : DenseCut::kByOutputs;
}

}  // namespace stormo::model
