#include <stormo/model/dense.h>

#include <torch/nn/modules/linear.h>

namespace stormo::model {

Dense::Dense(std::int64_t in, std::int64_t out, Activation activation, DenseCut cut,
             bool sends_loss)
    : Segment("Dense"),
      in_(in),
      out_(out),
      activation_(activation),
      cut_(cut),
      sends_loss_(sends_loss) {
  const auto linear = register_module("linear", torch::nn::Linear(in, out));
  weight_ = linear->weight;
  bias_ = linear->bias;
}

torch::Tensor Dense::forward(torch::Tensor x) {
  x = x.flatten(1);
  const bool cut = ranks() != nullptr;
  if (cut && (cut_ == DenseCut::kByInputs || cut_ == DenseCut::kByOwnInputs)) {
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
  }
  if (sends_loss_) out.sums.loss = {out_ + 1};
  return out;
}

DenseCut cut_of_layer(std::size_t index, std::size_t count) {
  if (index % 2 == 1) return DenseCut::kByInputs;
  return index + 1 == count ? DenseCut::kByOwnInputs : DenseCut::kByOutputs;
}

}  // namespace stormo::model
