#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace stormo::protocol {

/// Averages of pairs, at any time (AD-PSGD: Lian et al., "Asynchronous decentralized parallel
/// stochastic gradient descent", ICML 2018): two ranks replace their values by the mean of both.
/// One of them asks, and the other answers at once and never waits for anybody: if those who ask
/// ask only those who answer, no ranks wait for each other. Neither has a clock or sends anything:
/// their owners bring questions and answers, which may be lost, late, doubled, and come in any
/// order, and repeat a question that has no answer yet.
///
/// An answer says how much has moved from the one to the other since the beginning: so an average
/// is made once, however often its question and its answer come, and neither half of it is lost.
struct PairQuestion {
  std::uint64_t number = 0;  ///< of this rank's questions to the other
  double value = 0;
};
struct PairAnswer {
  std::uint64_t number = 0;  ///< of the question
  double moved = 0;          ///< to the one who answers, in all
};

/// A rank that asks, one other at a time.
class AskingRank {
 public:
  AskingRank(int ranks, double value) : peers_(static_cast<std::size_t>(ranks)), value_(value) {}

  /// Begins an average with `peer`. Not while it awaits another one, or after lose(peer).
  void begin(int peer);
  /// To whom, and what to send, again where it may have been lost; nothing: it awaits no answer.
  const std::optional<std::pair<int, PairQuestion>>& question() const { return question_; }
  void receive(int from, const PairAnswer& answer);
  /// No answer will come from there. If one was on its way, its average is half: the value of the
  /// other went with it.
  void lose(int peer);

  /// A change by something else, such as a gradient; also while it awaits an answer.
  void add(double change) { value_ += change; }
  double value() const { return value_; }
  /// What has moved to `peer`, as far as this rank knows.
  double moved(int peer) const { return peers_[static_cast<std::size_t>(peer)].moved; }

 private:
  struct Peer {
    std::uint64_t asked = 0;
    double moved = 0;
    bool lost = false;
  };
  std::vector<Peer> peers_;  // by rank
  std::optional<std::pair<int, PairQuestion>> question_;
  double value_;
};

/// A rank that answers.
class AnsweringRank {
 public:
  AnsweringRank(int ranks, double value)
      : answers_(static_cast<std::size_t>(ranks)), value_(value) {}

  /// The mean of both, once for each question; nothing for one that is older than the last.
  std::optional<PairAnswer> receive(int from, const PairQuestion& question);

  void add(double change) { value_ += change; }
  double value() const { return value_; }
  double moved(int from) const { return answers_[static_cast<std::size_t>(from)].moved; }

 private:
  std::vector<PairAnswer> answers_;  // the last one, by rank
  double value_;
};

}  // namespace stormo::protocol
