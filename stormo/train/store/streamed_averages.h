#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/state/safetensors.h>
#include <stormo/train/store/averaged_state.h>
#include <stormo/train/store/outer_state.h>

namespace stormo::train {

/// Averages of parameters that travel while ranks go on, and then become outer updates. In a codec
/// travel the outer gradients of ranks: what they have changed since the outer update before.
class StreamedAverages {
 public:
  /// Borrowed.
  StreamedAverages(AveragedState& state, OuterState& outer) : state_(state), outer_(outer) {}
  /// What is still under way keeps its memory.
  ~StreamedAverages();
  StreamedAverages(const StreamedAverages&) = delete;
  StreamedAverages& operator=(const StreamedAverages&) = delete;

  /// Sends the weights of the range as they are; a rank counts for `weight` in their average. None
  /// of the range is under way. `sent`: what that is, in this codec.
  Status start(comm::Communicator& ranks, const ParameterRange& range, Codec codec,
               const std::vector<analysis::Collective>& sent, double weight);
  bool is_under_way(const ParameterRange& range) const;
  /// Before an update of weights: what comes back is older than these.
  void before_update();
  /// Waits for the average of the range, and does the outer update. Of weights that were updated
  /// meanwhile the share `mixing` stays. Returns the square of the distance between weights and
  /// average, of weights that count.
  Result<double> finish(const ParameterRange& range, double mixing);

  /// See HeldState.
  TensorMap residuals() const;
  void keep_residuals(TensorMap kept) { kept_ = std::move(kept); }

 private:
  struct Average {
    ParameterRange range;
    Codec codec;
    std::vector<double> weights;        // one: this rank's, then the sum
    std::vector<torch::Tensor> values;  // by array
    std::vector<comm::Work> works;
    bool is_older = false;  // than the weights now
  };
  std::vector<Average>::const_iterator find(const ParameterRange& range) const;
  /// What this rank gives of an array in a codec.
  torch::Tensor change_of(const AveragedState::Array& array, double share) const;
  Status start(comm::Communicator& ranks, const std::vector<analysis::Collective>& sent,
               Average& of);
  /// Null for a codec that does not encode.
  comm::EncodedSum* encoding_of(comm::Communicator& ranks, const AveragedState::Array& array,
                                const analysis::Collective& sum);

  AveragedState& state_;
  OuterState& outer_;
  std::vector<Average> under_way_;
  std::map<std::string, std::unique_ptr<comm::EncodedSum>> encodings_;  // by the name of a residual
  TensorMap kept_;                                                      // for those to come
};

}  // namespace stormo::train
