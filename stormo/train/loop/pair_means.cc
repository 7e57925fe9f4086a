#include <stormo/train/loop/pair_means.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/protocol/gossip/pairs.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/failure.h>
#include <stormo/train/perform/last_wait.h>
#include <stormo/train/store/averaged_state.h>

namespace stormo::train {
namespace {

/// Of a question or an answer, and with the number of the array added of its weights.
constexpr std::uint32_t kQuestionTag = 0x49000000, kAnswerTag = 0x4a000000;

/// What comes before the weights. A rank that ends says so in place of a question.
struct PairHeader {
  enum Kind : std::int64_t { kMean = 0, kEnd = 1 };
  std::array<std::int64_t, 2> words{};  // kind, whether its sender was called

  PairHeader() = default;
  PairHeader(Kind kind, bool called) : words{kind, called ? 1 : 0} {}
  bool ends() const { return words[0] == kEnd; }
  bool called() const { return words[1] != 0; }
};

std::uint32_t tag_of(std::uint32_t message, std::size_t array) {
  return message + 1 + static_cast<std::uint32_t>(array);
}

/// Adds `change`, which is as array.flat(), times `factor` to the weights.
void add_to(FusedOptimizer& optimizer, const AveragedState::Array& array,
            const torch::Tensor& change, double factor) {
  std::vector<torch::Tensor> weights = optimizer.values().weights;
  const std::vector<torch::Tensor> parts = array.views_of(change);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    weights[array.parameters()[i]].add_(parts[i], factor);
  }
}

class AskingSide final : public PairMeans {
 public:
  AskingSide(comm::Communicator& ranks, FusedOptimizer& optimizer, const Options& options)
      : ranks_(ranks), optimizer_(optimizer), state_(optimizer), options_(options) {}
  ~AskingSide() override { wait_or_keep(open_); }

  Status begin() override {
    forget_call();
    return {};
  }
  Status after_step(std::int64_t number) override;
  Status end() override;

 private:
  /// A question and its answer. It has an address of its own.
  struct Exchange {
    PairHeader question, answer;
    std::vector<torch::Tensor> own, moved;  // by array
    std::vector<comm::Work> works;
  };
  void ask(int peer);
  Status take();

  comm::Communicator& ranks_;
  FusedOptimizer& optimizer_;
  AveragedState state_;
  const Options options_;
  std::vector<Exchange> open_;  // at most one
};

Status AskingSide::after_step(std::int64_t number) {
  STORMO_RETURN_IF_ERROR(ranks_.status());
  const bool is_here =
      !open_.empty() && std::ranges::all_of(open_.front().works, &comm::Work::test);
  if (is_here) STORMO_RETURN_IF_ERROR(take());
  if (!open_.empty() || number % options_.period != 0) return {};
  ask(protocol::rank_to_ask(options_.seed, ranks_.size(), ranks_.rank(), number));
  return {};
}

void AskingSide::ask(int peer) {
  const torch::NoGradGuard no_grad;
  Exchange& now = open_.emplace_back();
  now.question = PairHeader(PairHeader::kMean, called());
  const std::vector<AveragedState::Array> weights = state_.weights();
  now.works.push_back(ranks_.recv_async(now.answer.words, peer, kAnswerTag));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    now.own.push_back(weights[i].flat());
    now.moved.push_back(torch::empty_like(now.own.back()));
    now.works.push_back(
        ranks_.recv_async(tensor::buffer_of(now.moved[i]), peer, tag_of(kAnswerTag, i)));
  }
  now.works.push_back(ranks_.send_async(now.question.words, peer, kQuestionTag));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    now.works.push_back(
        ranks_.send_async(tensor::buffer_of(now.own[i]), peer, tag_of(kQuestionTag, i)));
  }
}

// The weights have changed since they were sent: what moves is decided by the one who answered.
Status AskingSide::take() {
  const torch::NoGradGuard no_grad;
  Exchange& now = open_.front();
  for (comm::Work& w : now.works) STORMO_RETURN_IF_ERROR(w.wait());
  const std::vector<AveragedState::Array> weights = state_.weights();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    add_to(optimizer_, weights[i], now.moved[i], -1);
  }
  optimizer_.round_masters();
  if (now.answer.called()) call();
  open_.clear();
  ++taken_;
  return {};
}

Status AskingSide::end() {
  if (!open_.empty()) STORMO_RETURN_IF_ERROR(take());
  const PairHeader last(PairHeader::kEnd, called());
  for (int r = 0; r < ranks_.size(); ++r) {
    if (protocol::asks(r)) continue;
    std::array<std::int64_t, 2> words = last.words;
    STORMO_RETURN_IF_ERROR(ranks_.send(words, r, kQuestionTag));
  }
  return {};
}

/// Weights that others may change lie beside those with which this rank computes.
class AnsweringSide final : public PairMeans {
 public:
  AnsweringSide(comm::Communicator& ranks, FusedOptimizer& optimizer)
      : ranks_(ranks), optimizer_(optimizer), state_(optimizer) {}
  ~AnsweringSide() override;

  Status begin() override;
  Status after_step(std::int64_t number) override;
  Status end() override;

 private:
  void serve();
  Status answer_all();
  Status answer(int from);
  void take_part();

  comm::Communicator& ranks_;
  FusedOptimizer& optimizer_;
  AveragedState state_;
  std::vector<torch::Tensor> before_;  // by array: of the last take_part()
  std::thread server_;

  std::mutex mutex_;                   // of what follows
  std::vector<torch::Tensor> common_;  // by array: with the means, without the present step
  bool moved_ = false;                 // since the last take_part()
  Status served_;
};

// Who asks would wait for ever for this rank, which leaves in the middle.
AnsweringSide::~AnsweringSide() {
  if (!server_.joinable()) return;
  ranks_.fail(Status(Code::kCancelled, "a rank that answers others has ended before them"));
  server_.join();
}

Status AnsweringSide::begin() {
  const torch::NoGradGuard no_grad;
  before_.clear();
  common_.clear();
  for (const AveragedState::Array& array : state_.weights()) {
    before_.push_back(array.flat());
    common_.push_back(before_.back().clone());
  }
  moved_ = false;
  forget_call();
  server_ = std::thread([this] { serve(); });
  return {};
}

void AnsweringSide::serve() {
  Status outcome;
  try {
    outcome = answer_all();
  } catch (...) {
    outcome = failure_of_current_exception();
  }
  const std::lock_guard lock(mutex_);
  served_ = outcome;
}

Status AnsweringSide::answer_all() {
  const torch::NoGradGuard no_grad;  // of this thread
  for (int asking = protocol::asking_ranks(ranks_.size()); asking > 0;) {
    PairHeader question;
    Rank from = -1;
    STORMO_RETURN_IF_ERROR(ranks_.recv_any(question.words, kQuestionTag, from));
    if (question.called()) call();
    if (question.ends()) {
      --asking;
    } else {
      STORMO_RETURN_IF_ERROR(answer(from));
    }
  }
  return {};
}

Status AnsweringSide::answer(int from) {
  std::vector<torch::Tensor> theirs;
  for (std::size_t i = 0; i < common_.size(); ++i) {
    theirs.push_back(torch::empty_like(common_[i]));
    STORMO_RETURN_IF_ERROR(
        ranks_.recv(tensor::buffer_of(theirs[i]), from, tag_of(kQuestionTag, i)));
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < common_.size(); ++i) {
      theirs[i].sub_(common_[i]).div_(2);
      common_[i].add_(theirs[i]);
    }
    moved_ = true;
  }
  PairHeader answer(PairHeader::kMean, called());
  STORMO_RETURN_IF_ERROR(ranks_.send(answer.words, from, kAnswerTag));
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    STORMO_RETURN_IF_ERROR(ranks_.send(tensor::buffer_of(theirs[i]), from, tag_of(kAnswerTag, i)));
  }
  return {};
}

/// What this rank's step has changed is added to what others have, and all of it is there again.
/// Where nobody has changed anything the weights keep their bits.
void AnsweringSide::take_part() {
  const torch::NoGradGuard no_grad;
  std::vector<AveragedState::Array> weights = state_.weights();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    torch::Tensor own = weights[i].flat();
    if (!moved_) {
      common_[i].copy_(own);
      before_[i] = own;
      continue;
    }
    common_[i].add_(own.sub_(before_[i]));
    before_[i].copy_(common_[i]);
    weights[i].take(before_[i]);
  }
  if (moved_) optimizer_.round_masters();
  moved_ = false;
}

Status AnsweringSide::after_step(std::int64_t /*number*/) {
  STORMO_RETURN_IF_ERROR(ranks_.status());
  take_part();
  const std::lock_guard lock(mutex_);
  return served_;
}

Status AnsweringSide::end() {
  server_.join();
  take_part();
  return served_;
}

}  // namespace

std::unique_ptr<PairMeans> PairMeans::create(comm::Communicator& ranks, FusedOptimizer& optimizer,
                                             const Options& options) {
  if (protocol::asks(ranks.rank())) {
    return std::make_unique<AskingSide>(ranks, optimizer, options);
  }
  return std::make_unique<AnsweringSide>(ranks, optimizer);
}

}  // namespace stormo::train
