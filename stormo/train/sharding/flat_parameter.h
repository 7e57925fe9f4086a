#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/comm/buffer.h>
#include <stormo/parallel/sharding/model_state.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::train {

/// How a FlatParameter keeps its memory.
struct FlatLayout {
  int ranks = 1;
  int rank = 0;
  torch::ScalarType compute{};       ///< of the parameters that the module sees
  torch::ScalarType reduce{};        ///< of gradients on their way
  bool resident = false;             ///< the whole is never released
  bool keep_whole_gradient = false;  ///< after its reduction, until it is dropped (stage 1)
};

/// Parameters of one type in one flat buffer, of which rank r owns the r-th of `ranks` equal,
/// contiguous parts. Moves no data between ranks: it says what is to be moved.
///
/// The parameters become views of the buffer, once. release() gives its memory back without
/// touching the views, nor those that autograd has saved: they see the values again when the buffer
/// has memory and has been gathered. Until then reading them is a fault.
///
/// Each parameter starts at a multiple of 64 bytes, and a part is a multiple of 16 elements long.
class FlatParameter {
 public:
  /// The parameters have one type, are dense, on one device and all trainable or all frozen. They
  /// are shared.
  FlatParameter(std::vector<NamedParameter> parameters, const FlatLayout& layout);
  FlatParameter(FlatParameter&&) = default;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  bool trainable() const { return trainable_; }
  torch::ScalarType own_type() const { return own_type_; }
  std::int64_t elements() const { return elements_; }          ///< without alignment
  std::int64_t num_elements() const { return full_.numel(); }  ///< with alignment

  /// kInvalidArgument names a parameter that is no view of the buffer any more, or that was frozen
  /// and is not: its gradient would be lost.
  Status check_views() const;

  /// Whether the parameters can be read and are up to date.
  bool gathered() const { return gathered_; }
  /// Has memory for the whole, and this rank's part of it as it shall be sent.
  void prepare_gather();
  /// What an all_gather takes and fills; the part of a resident whole is its own place in it.
  comm::Buffer part() const;
  comm::Buffer whole() const;
  /// Of the whole, and of gradients on their way.
  DType gathered_type() const;
  DType reduced_type() const;
  void end_gather() { gathered_ = true; }
  void release();
  /// From now on release() leaves the whole where it is.
  void keep_gathered() { layout_.resident = true; }
  /// The ranks have changed their parts, or may have: what is there is not up to date any more.
  void make_stale();

  /// The gradients, times `scale`, in one buffer as the parameters lie in theirs: what a
  /// reduce_scatter takes; they leave the parameters. present[i] becomes whether parameter i has
  /// one. A scale of 0 reads nothing.
  torch::Tensor take_gradients(double scale, std::span<std::uint8_t> present);
  /// Memory for the outcome of a reduce_scatter of `gradients`.
  torch::Tensor reduced_part(const torch::Tensor& gradients) const;
  /// Adds it to the gradients of the owned pieces; where present[i] is 0 it is dropped.
  void accept(const torch::Tensor& reduced, std::span<const std::uint8_t> present);

  /// What an optimizer updates: this rank's piece of each parameter that it has a part of, in the
  /// parameters' own type. A gradient in that type is the tensor's grad().
  const std::vector<NamedParameter>& pieces() const { return pieces_; }
  /// For each parameter what this rank owns of it, and where that lies.
  std::vector<OwnedRange> owned() const;
  /// Of the pieces, by index into parameters(), where the reduction left them.
  std::vector<TensorGradient> gradients() const;
  /// That of this rank's piece of a parameter, 0 if it has none; null if it has no such piece.
  /// Until drop_gradients().
  torch::Tensor* gradient_of(const std::string& parameter);
  std::vector<TensorPiece> state() const;
  /// Gradients of parameters and pieces.
  void drop_gradients();

  /// Bytes of memory held at the moment. Gradients count with their whole storage.
  struct Bytes {
    std::int64_t parameters = 0;  ///< the buffer and this rank's part, in the type of computation
    std::int64_t master = 0;      ///< this rank's part in the parameters' own type, if another
    std::int64_t gradients = 0;
  };
  Bytes bytes() const;
  /// By the types: optimizer is the master copy alone.
  parallel::StateBytesPerParameter bytes_per_parameter() const;

 private:
  struct Slot {
    std::int64_t offset;
    std::int64_t count;
  };
  /// Where a piece lies in the part, and of which parameter it is.
  struct Place {
    std::size_t parameter;
    std::int64_t offset;
    std::int64_t begin;  ///< in the parameter
    std::int64_t end;
  };

  void lay_out();
  /// Gradients of the pieces are kept in narrow_gradients_, as they came: an update of float32
  /// takes 16 bits.
  bool narrow() const { return layout_.reduce != own_type_ && own_type_ == torch::kFloat32; }
  torch::Tensor& gradient_of_piece(std::size_t i) {
    return narrow() ? narrow_gradients_[i] : pieces_[i].tensor.mutable_grad();
  }
  torch::TensorOptions on_device(torch::ScalarType type) const {
    return torch::dtype(type).device(parameters_.front().tensor.device());
  }
  bool mixed() const { return layout_.compute != own_type_; }
  std::int64_t part_size() const { return full_.numel() / layout_.ranks; }

  FlatLayout layout_;
  std::vector<NamedParameter> parameters_;
  torch::ScalarType own_type_;
  bool trainable_;
  std::int64_t elements_ = 0;
  std::vector<Slot> slots_;
  std::vector<Place> places_;
  torch::Tensor full_;    ///< compute type
  torch::Tensor part_;    ///< compute type; a view of full_ when resident
  torch::Tensor master_;  ///< own type; part_ itself unless mixed
  std::vector<NamedParameter> pieces_;
  std::vector<torch::Tensor> narrow_gradients_;  ///< of the pieces, if narrow()
  bool gathered_ = true;
  bool stale_ = false;
  std::int64_t seen_version_ = 0;  ///< of master_, when the whole was last gathered
};

}  // namespace stormo::train
