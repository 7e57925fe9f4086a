#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <stormo/server/ledger.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::server {

/// A Ledger in memory that processes of one host map. No locks: a share is one word, which is
/// changed by compare-and-swap. One object for each worker; the memory is shared.
class SharedLedger : public Ledger {
 public:
  /// `worker`: its number, below `workers`.
  /// `status`: asked when a worker's call begins, and now and then while it waits: a failure ends
  /// it.
  SharedLedger(
      int workers, int worker, std::function<Status()> status = [] { return Status(); })
      : workers_(workers), worker_(worker), status_(std::move(status)) {}

  static std::size_t bytes(int workers);
  /// Makes an empty ledger in `memory`: bytes() long, aligned to 64, borrowed.
  void create(std::byte* memory);
  void attach(std::byte* memory) { memory_ = memory; }
  /// The same, of a memory file that it keeps.
  void attach(transport::MemoryFile file) {
    file_ = std::move(file);
    memory_ = file_->data();
  }

  Status deal(const Terms& terms) override;
  Result<Terms> terms() override;
  Result<Turn> next(const Outcome& outcome) override;
  Result<Turn> look() override;
  Status wait(Deadline by) override;
  Status leave() override;
  Status advance(std::uint64_t step) override;
  Status stop(int signal) override;

  /// In the name of a worker that is lost: others do what is left of its share.
  void evict();
  /// In the name of a worker that has come back.
  void readmit();
  bool is_lost() const { return entry(worker_).lost; }

 private:
  struct alignas(64) Head {
    std::atomic<std::uint64_t> first_step{0}, steps{0};
    std::atomic<std::int64_t> first_sample{0};
    std::atomic<bool> by_speed{false};
    // with portions:
    std::atomic<std::int32_t> portions{0};
    std::atomic<std::uint64_t> step{0};     // the current one
    std::atomic<std::int64_t> usual_ns{0};  // duration of a portion: a mean
    std::atomic<int> stop_signal{0};
    transport::Flag bell;  // rings after every change
  };
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> share{0};  // begin in the lower half, end in the upper
    std::atomic<std::uint64_t> doing{0};  // task in hand; 0: none
    std::atomic<double> loss_sum{0};
    std::atomic<std::int64_t> samples{0};
    std::atomic<bool> came{false};
    std::atomic<bool> lost{false};
    std::atomic<bool> left{false};
    std::atomic<std::uint32_t> times_lost{0}, times_back{0};
  };
  struct Portion {
    std::atomic<std::uint64_t> state{0};  // protocol::PortionState; steps are its batches
    std::atomic<std::int64_t> begun_ns{0};
  };
  static constexpr int kPartShift = 40;
  static std::uint64_t pack(const StepTask& task);
  static StepTask unpack(std::uint64_t word);
  Head& head() const { return *reinterpret_cast<Head*>(memory_); }
  Entry& entry(int worker) const {
    return reinterpret_cast<Entry*>(memory_ + sizeof(Head))[worker];
  }
  Portion& portion(int p) const {
    return reinterpret_cast<Portion*>(memory_ + sizeof(Head) +
                                      static_cast<std::size_t>(workers_) * sizeof(Entry))[p];
  }
  // with portions, see ledger_portions.cc
  bool has_portions() const { return head().portions.load() > 0; }
  void begin_portions(const Terms& terms);
  Turn next_portion();
  /// Whether this is the first result of the portion.
  bool finish_portion(bool is_computed);
  void give_up_portions();
  void add_portions(Turn& turn) const;
  void note_outcome(const Outcome& outcome);
  std::optional<StepTask> take_own();
  std::optional<StepTask> take_of_others();
  bool take(int part, bool front, StepTask& task);
  int slowest_other() const;
  Turn turn() const;

  int workers_;
  int worker_;
  std::function<Status()> status_;
  std::optional<transport::MemoryFile> file_;
  std::byte* memory_ = nullptr;
  std::uint32_t seen_ = 0;     // of the bell
  TimePoint portion_begun_{};  // of the one in hand
  transport::Health healthy_;  // waits end by their deadline
};

}  // namespace stormo::server
