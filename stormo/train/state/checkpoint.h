#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/checkpoint/format/piece.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/train/state/safetensors.h>
#include <stormo/train/state/tensor_piece.h>

// Checkpoints of tensors; the format itself is the layer stormo/checkpoint.
namespace stormo::train {

/// Parameters and buffers of a module by dotted name.
TensorMap named_state(const torch::nn::Module& module);

/// Tensors of the optimizer in checkpoints are "optimizer.<slot>.<parameter>".
bool is_optimizer_state(const std::string& name);
std::string optimizer_key(std::string_view slot, const std::string& parameter);
std::string_view optimizer_slot(std::string_view name);
/// Slots that several optimizers have: the number of updates, a float32 number for each parameter,
/// and the float32 values of 16-bit parameters.
inline constexpr std::string_view kStepSlot = "step", kMasterSlot = "master";

/// kInvalidArgument names a tensor of the model whose name has the form of the optimizer's.
Status check_names(const TensorMap& tensors);

/// Appends to `pieces` one piece for each whole tensor. Tensors in host memory in C order are
/// borrowed, so they may change only in updates; others are copied.
Status add_pieces(const TensorMap& tensors, std::vector<checkpoint::Piece>& pieces);

/// Appends a part of a tensor to `pieces`; borrowed as in add_pieces().
Status add_piece(const TensorPiece& part, std::vector<checkpoint::Piece>& pieces);

/// Elements [begin, end) of the checkpoint's tensor `name`, in one dimension; undefined when it has
/// none of that name.
Result<torch::Tensor> read_range(checkpoint::CheckpointReader& reader, const std::string& name,
                                 std::int64_t begin, std::int64_t end);

/// Fills `tensors` with the values of the same names. All names, shapes and dtypes are checked
/// first: kInvalidArgument names one that differs, and nothing is changed then.
Status read_into(checkpoint::CheckpointReader& reader, const TensorMap& tensors);

/// OK when read_into() can fill `tensors`, which are all of a model, and the checkpoint has no
/// others, except those of the optimizer. Else kInvalidArgument names one.
Status check_same_model(const checkpoint::Manifest& manifest, const TensorMap& tensors);
/// Fills all tensors of a model, after check_same_model().
Status read_all_into(checkpoint::CheckpointReader& reader, const TensorMap& tensors);

/// Reads the checkpoint's tensors of the optimizer, each as a whole.
Result<TensorMap> read_optimizer_state(checkpoint::CheckpointReader& reader);

/// Hash over names, shapes, dtypes and bytes of tensors that are added in name order.
class WeightsHash {
 public:
  void add(const std::string& name, const torch::Tensor& tensor);
  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  checkpoint::Hasher hasher_;
};
std::string weights_hash(const TensorMap& tensors);

/// Calls its argument for each tensor of a model, in name order. Where ranks have parts of a model
/// it is a collective, and a tensor can be read only until the next one is visited. Throws Error.
using VisitTensors = std::function<void(
    const std::function<void(const std::string& name, const torch::Tensor&)>& visit)>;
VisitTensors visit_all(TensorMap tensors);

}  // namespace stormo::train
