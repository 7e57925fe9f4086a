#pragma once

#include <cstdint>
#include <optional>

#include <stormo/model/chain.h>

namespace stormo::model {

/// How ranks cut a Dense that they compute together. Of two layers the first one is cut by its
/// outputs and the second one by its inputs, so that only the second one's output is added up.
enum class DenseCut : std::uint8_t {
  kNone,         ///< each rank computes the whole
  kByOutputs,    ///< "column parallel": each rank computes some outputs, which stay there
  kByInputs,     ///< "row parallel": each rank has some inputs, of a kByOutputs or of its own data
  kByOwnInputs,  ///< likewise, of an input that each rank has as a whole
  kByRows        ///< likewise, of a map of which each rank has its share of the rows
};

/// Places of which ranks of a grid may have parts: a map of `channels` x `height` x `width`.
struct DenseMap {
  std::int64_t channels = 0, height = 0, width = 0;
};

/// A fully connected layer, with ReLU or without. Input [B, ...] is flattened to [B, in]. Where the
/// input is a map, each rank of a grid computes the terms of its places, and they are added up.
class Dense final : public Segment {
 public:
  enum class Activation : std::uint8_t { kNone, kRelu };

  /// `sends_loss`: its output is that of the model, and one of the ranks has the targets
  /// (owned_loss()).
  Dense(std::int64_t in, std::int64_t out, Activation activation, DenseCut cut = DenseCut::kNone,
        std::optional<DenseMap> map = {}, bool sends_loss = false);

  torch::Tensor forward(torch::Tensor x) override;
  std::int64_t flops_per_sample() const override { return 2 * in_ * out_; }
  SplitForm split_form() const override;
  PlaceForm place_form() const override;

 private:
  torch::Tensor sum_of_places(const torch::Tensor& x) const;

  std::int64_t in_, out_;
  Activation activation_;
  DenseCut cut_;
  std::optional<DenseMap> map_;  // its input
  bool sends_loss_;
  torch::Tensor weight_, bias_;
};

/// How layer `index` of `count` fully connected layers is cut: two by two, and a last one by
/// itself.
DenseCut cut_of_layer(std::size_t index, std::size_t count);

}  // namespace stormo::model
