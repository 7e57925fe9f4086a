#pragma once

#include <cstdint>

namespace stormo::protocol {

/// Which worker keeps a run: the chief. Terms are numbered, and the first one is that of worker 0.
struct ChiefTerm {
  std::uint64_t number = 0;
  std::int32_t worker = 0;
  bool operator==(const ChiefTerm&) const = default;
};

/// What one server of a run with backups knows of its chiefs. When a chief is lost, the server that
/// executes the requests for part 0 proposes another one. From then on it takes no verdicts of the
/// lost one (see ServerVerdicts). The term begins when the backup of part 0 knows it; only then
/// others learn it, in any order. So a term has one chief, whichever server is lost, and verdicts
/// of a chief of an earlier term count nowhere where the later one is known. A plain value without
/// clock and I/O.
class ChiefTerms {
 public:
  const ChiefTerm& current() const { return current_; }
  /// Whether this server has proposed a chief, and the backup does not know it yet.
  bool is_proposing() const { return is_proposing_; }
  /// Whether what a worker says as the chief of this term counts.
  bool obeys(std::int32_t worker, const ChiefTerm& said) const {
    return !is_proposing_ && said == current_ && worker == current_.worker;
  }

  /// At the server that executes the requests for part 0: the term that follows, of this worker.
  const ChiefTerm& propose(std::int32_t worker);
  /// The backup knows what was proposed, or there is none any more.
  void confirm();
  /// Another process has told this term. True if it is a later one.
  bool learn(const ChiefTerm& told);

 private:
  ChiefTerm current_, proposed_;
  bool is_proposing_ = false;
};

}  // namespace stormo::protocol
