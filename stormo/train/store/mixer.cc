#include <stormo/train/store/mixer.h>

#include <algorithm>
#include <utility>

#include <stormo/tensor/bridge.h>
#include <stormo/train/perform/last_wait.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {
namespace {

/// Of messages in the group of those that mix, with the number of the array added.
constexpr std::uint32_t kWeightsTag = 0x47000000, kTrackersTag = 0x48000000;

}  // namespace

Mixer::~Mixer() { wait_or_keep(under_way_); }

const plan::MixingMatrix& Mixer::round(const std::string& topology, int ranks, std::int64_t step) {
  auto found = known_.find(topology);
  if (found == known_.end()) {
    found = known_.emplace(topology, plan::mixing_of(topology, ranks).take_or_throw()).first;
  }
  return found->second.at(step);
}

Result<Mixer::Exchange> Mixer::exchange(comm::Communicator& ranks, const plan::MixingMatrix& w,
                                        std::uint32_t tag, const analysis::Collective& what,
                                        torch::Tensor own) {
  rank_ = ranks.rank();
  const comm::Buffer out = tensor::buffer_of(own);
  STORMO_RETURN_IF_ERROR(check_elements(what, out.count, out.dtype));
  const std::vector<Rank> from = senders_to(w, rank_), to = receivers_of(w, rank_);
  Exchange made{.own = own,
                .theirs = torch::empty({std::ssize(from), own.numel()}, own.options()),
                .terms = w[static_cast<std::size_t>(rank_)],
                .works = {}};
  std::vector<comm::Buffer> in;
  for (std::int64_t i = 0; i < std::ssize(from); ++i) {
    const torch::Tensor one = made.theirs[i];
    in.push_back(tensor::buffer_of(one));
  }
  made.works = start_messages(ranks, what, tag, {.own = out, .to = to, .theirs = in, .from = from});
  return made;
}

Result<torch::Tensor> Mixer::mean_of(Exchange& of, Rank rank) {
  for (comm::Work& w : of.works) STORMO_RETURN_IF_ERROR(w.wait());
  double own = 0;
  for (const plan::MixingTerm& t : of.terms) own = t.from == rank ? t.weight : own;
  torch::Tensor mean = of.own.mul_(own);
  std::int64_t next = 0;
  for (const plan::MixingTerm& t : of.terms) {
    if (t.from != rank) mean.add_(of.theirs[next++], t.weight);
  }
  return mean;
}

Status Mixer::start(comm::Communicator& ranks, const std::string& topology,
                    const std::vector<analysis::Collective>& sent) {
  const plan::MixingMatrix& w = round(topology, ranks.size(), mixed_++);
  std::vector<AveragedState::Array> weights = state_.weights();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const auto tag = kWeightsTag + static_cast<std::uint32_t>(i);
    STORMO_ASSIGN_OR_RETURN(under_way_.emplace_back(),
                            exchange(ranks, w, tag, sent[i], weights.at(i).flat()));
  }
  return {};
}

Status Mixer::receive() {
  for (Exchange& one : under_way_) {
    for (comm::Work& w : one.works) STORMO_RETURN_IF_ERROR(w.wait());
    one.works.clear();
  }
  return {};
}

Status Mixer::finish() {
  if (under_way_.empty()) return {};
  const torch::NoGradGuard no_grad;
  std::vector<AveragedState::Array> weights = state_.weights();
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor mean, mean_of(under_way_[i], rank_));
    weights[i].take(mean);
  }
  under_way_.clear();
  optimizer_.round_masters();
  return {};
}

Status Mixer::track(comm::Communicator& ranks, const std::string& topology,
                    const std::vector<analysis::Collective>& sent) {
  const plan::MixingMatrix& w = round(topology, ranks.size(), tracked_++);
  std::vector<AveragedState::Array> weights = state_.weights(), gradients = state_.gradients();
  trackers_.resize(sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    Tracker& of = trackers_[i];
    torch::Tensor g = gradients.at(i).flat().to(weights.at(i).type());
    if (!of.estimate.defined()) {
      of.estimate = torch::zeros_like(g);
      of.gradient = torch::zeros_like(g);
    }
    const auto tag = kTrackersTag + static_cast<std::uint32_t>(i);
    STORMO_ASSIGN_OR_RETURN(under_way_.emplace_back(),
                            exchange(ranks, w, tag, sent[i], of.estimate));
    STORMO_ASSIGN_OR_RETURN(of.estimate, mean_of(under_way_.back(), rank_));
    under_way_.pop_back();
    of.estimate.add_(g).sub_(of.gradient);
    of.gradient = g;
    gradients[i].take(of.estimate);
  }
  return {};
}

void Mixer::restart() {
  mixed_ = tracked_ = 0;
  trackers_.clear();
}

}  // namespace stormo::train
