#include <stormo/train/store/streamed_averages.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <stormo/comm/codec/sum_of_codes.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/perform/last_wait.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/state/residuals.h>

namespace stormo::train {

StreamedAverages::~StreamedAverages() {
  if (!wait_or_keep(under_way_)) new auto(std::move(encodings_));  // NOLINT: they are used, too
}

std::vector<StreamedAverages::Average>::const_iterator StreamedAverages::find(
    const ParameterRange& range) const {
  return std::ranges::find(under_way_, range, &Average::range);
}

bool StreamedAverages::is_under_way(const ParameterRange& range) const {
  return find(range) != under_way_.end();
}

void StreamedAverages::before_update() {
  for (Average& a : under_way_) a.is_older = true;
}

torch::Tensor StreamedAverages::change_of(const AveragedState::Array& array, double share) const {
  torch::Tensor flat = array.flat();
  std::vector<torch::Tensor> values = array.views_of(flat);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].neg_().add_(outer_.began_with(array.parameters()[i]));
  }
  return flat.mul_(share);
}

comm::EncodedSum* StreamedAverages::encoding_of(comm::Communicator& ranks,
                                                const AveragedState::Array& array,
                                                const analysis::Collective& sum) {
  const CodecRow& row = row_of(sum.codec);
  if (!row.encodes()) return nullptr;
  const std::string name = "outer." + state_.name_of(array);
  std::unique_ptr<comm::EncodedSum>& own = encodings_[name];
  if (!own) {
    own = std::make_unique<comm::SumOfCodes>(ranks, row, sum.elements, sum.codec.density);
    restore_residual(kept_, name, *own);
  }
  return own.get();
}

// What a codec loses is kept for the next average, in which a rank may count for another weight. So
// it gets terms of the average itself, for which all ranks learn the sum of their weights first.
Status StreamedAverages::start(comm::Communicator& ranks, const ParameterRange& range, Codec codec,
                               const std::vector<analysis::Collective>& sent, double weight) {
  const torch::NoGradGuard no_grad;
  Average& one = under_way_.emplace_back();
  one.range = range;
  one.codec = codec;
  one.weights = {weight};
  if (codec != Codec::kNone && !sent.empty()) {
    const comm::Buffer sum(one.weights);
    STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent.front(), in_place({&sum, 1})));
  }
  const double share = one.weights[0] > 0 ? weight / one.weights[0] : 0;
  for (const AveragedState::Array& array : state_.weights(range.first, range.last)) {
    one.values.push_back(codec == Codec::kNone ? array.flat().mul_(weight)
                                               : change_of(array, share));
  }
  return sent.empty() ? Status() : start(ranks, sent, one);
}

Status StreamedAverages::start(comm::Communicator& ranks,
                               const std::vector<analysis::Collective>& sent, Average& of) {
  if (of.codec == Codec::kNone) {
    const comm::Buffer sum(of.weights);
    of.works.push_back(start_transfer(ranks, sent.front(), in_place({&sum, 1})));
  }
  const std::vector<AveragedState::Array> arrays = state_.weights(of.range.first, of.range.last);
  std::size_t next = 1;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].elements() == 0) continue;  // nothing is sent
    const analysis::Collective& sum = sent.at(next++);
    of.values[i] = of.values[i].to(tensor::scalar_type_of(sum.dtype));
    const comm::Buffer buffer = tensor::buffer_of(of.values[i]);
    STORMO_RETURN_IF_ERROR(check_elements(sum, buffer.count, buffer.dtype));
    Operands where = in_place({&buffer, 1});
    where.encoding = encoding_of(ranks, arrays[i], sum);
    of.works.push_back(start_transfer(ranks, sum, where));
  }
  return {};
}

Result<double> StreamedAverages::finish(const ParameterRange& range, double mixing) {
  const torch::NoGradGuard no_grad;
  Average& of = under_way_[static_cast<std::size_t>(find(range) - under_way_.begin())];
  for (comm::Work& w : of.works) STORMO_RETURN_IF_ERROR(w.wait());
  double squares = 0;
  std::vector<AveragedState::Array> arrays = state_.weights(range.first, range.last);
  for (std::size_t k = 0; k < arrays.size(); ++k) {
    torch::Tensor average = of.values[k].to(arrays[k].type());
    std::vector<torch::Tensor> values = arrays[k].views_of(average);
    if (of.codec == Codec::kNone) average.mul_(1 / of.weights[0]);
    for (std::size_t i = 0; i < values.size() && of.codec != Codec::kNone; ++i) {
      values[i].neg_().add_(outer_.began_with(arrays[k].parameters()[i]));
    }
    squares += arrays[k].squares_from(average);
    outer_.update(arrays[k].parameters(), values, of.is_older ? mixing : 0);
  }
  under_way_.erase(find(range));
  return squares;
}

TensorMap StreamedAverages::residuals() const {
  TensorMap out;
  for (const auto& [name, sum] : encodings_) add_residual(out, name, *sum);
  return out;
}

}  // namespace stormo::train
