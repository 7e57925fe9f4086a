#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "tests/conformance/transport_conformance.h"

namespace stormo::transport {
namespace {

/// Letters on their way, by (sender, receiver); shared by all endpoints of a fabric.
struct PostOffice {
  struct Letter {
    Tag tag = 0;
    std::vector<std::byte> bytes;
  };
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<Rank, Rank>, std::deque<Letter>> letters;
};

class MailTransport final : public Transport {
 public:
  MailTransport(std::shared_ptr<PostOffice> office, Rank rank, int size)
      : office_(std::move(office)), rank_(rank), size_(size) {}

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }

  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  Deadline by) override {
    std::unique_lock lock(office_->mutex);
    for (const Outgoing& out : sends) {
      if (!is_peer(out.to)) return no_peer(out.to);
      office_->letters[{rank_, out.to}].push_back({out.tag, {out.bytes.begin(), out.bytes.end()}});
      ++counters_.messages_sent;
      counters_.payload_bytes_sent += out.bytes.size();
    }
    office_->arrived.notify_all();
    for (const Incoming& in : receives) {
      if (!is_peer(in.from)) return no_peer(in.from);
      if (cause_.ok()) record(receive(in, by, lock));
    }
    return cause_;
  }

  void fail(Status cause) override {
    const std::lock_guard lock(office_->mutex);
    record(std::move(cause));
    office_->arrived.notify_all();
  }

  Counters counters() const override {
    const std::lock_guard lock(office_->mutex);
    return counters_;
  }

 private:
  bool is_peer(Rank r) const { return r >= 0 && r < size_ && r != rank_; }

  static Status no_peer(Rank r) {
    return invalid_argument("rank " + std::to_string(r) +
                            " is no peer; name another rank of the group");
  }

  /// The first cause stays.
  void record(Status outcome) {
    if (cause_.ok()) cause_ = std::move(outcome);
  }

  /// Waits for the next letter of in.from and opens it. `lock` is held, and released while waiting.
  Status receive(const Incoming& in, Deadline by, std::unique_lock<std::mutex>& lock) {
    auto& queue = office_->letters[{in.from, rank_}];
    const auto ready = [&] { return !queue.empty() || !cause_.ok(); };
    if (by.is_never()) {
      office_->arrived.wait(lock, ready);
    } else if (!office_->arrived.wait_until(lock, by.when(), ready)) {
      return {Code::kDeadlineExceeded, "recv from " + std::to_string(in.from)};
    }
    if (!cause_.ok()) return cause_;
    const PostOffice::Letter letter = std::move(queue.front());
    queue.pop_front();
    if (letter.tag != in.tag || letter.bytes.size() != in.bytes.size()) {
      return {Code::kMismatch, "recv from " + std::to_string(in.from) + ": got " +
                                   std::to_string(letter.bytes.size()) + " bytes with tag " +
                                   std::to_string(letter.tag) + ", expected " +
                                   std::to_string(in.bytes.size()) + " with tag " +
                                   std::to_string(in.tag)};
    }
    std::copy(letter.bytes.begin(), letter.bytes.end(), in.bytes.begin());
    ++counters_.messages_received;
    counters_.payload_bytes_received += letter.bytes.size();
    return {};
  }

  std::shared_ptr<PostOffice> office_;
  Rank rank_;
  int size_;
  Status cause_;       // guarded by office_->mutex
  Counters counters_;  // guarded by office_->mutex
};

Fabric make_mail_fabric(int n) {
  const auto office = std::make_shared<PostOffice>();
  Fabric fabric;
  for (Rank r = 0; r < n; ++r) fabric.push_back(std::make_unique<MailTransport>(office, r, n));
  return fabric;
}

INSTANTIATE_TEST_SUITE_P(Mail, TransportConformance,
                         ::testing::Values(FabricFactory{"mail", make_mail_fabric}), fabric_name);

}  // namespace
}  // namespace stormo::transport
