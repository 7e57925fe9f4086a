#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <span>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/mailbox/message_record.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// Matches the messages of one rank: a pure state machine, which moves no bytes between ranks and
/// never waits. Who drives it carries records from rank to rank, in order between each two ranks.
///
/// A message goes to the receive that was posted first among those with its sender (or kAnyRank),
/// its channel and its tag; a receive takes the message that arrived first among those that it
/// fits. So messages of one tag between two ranks never overtake each other, and nobody waits for a
/// message of another tag. This is the rule of MPI (MPI 4.1, section 3.5).
///
/// Messages up to `eager_bytes` are sent at once; what has no receive yet is kept here. A sender
/// sends at most `eager_window` bytes, records included, to a rank ahead of its receives; what
/// exceeds this waits for its receive as long messages do (rendezvous). So a rank keeps at most
/// `eager_window` bytes of each other rank, and a record of each message that waits at its sender.
///
/// Cost: linear in the number of posted receives, or of messages without a receive.
class Matching {
 public:
  /// Of an operation of this rank, which its caller chooses. 0 is none.
  using Id = std::uint64_t;

  /// A window fits into a ring, so that a short message within it leaves its sender although the
  /// receiver moves no messages. Half a window also fits into the buffers of a socket.
  struct Options {
    std::uint64_t eager_bytes = 16 << 10;
    std::uint64_t eager_window = 128 << 10;
  };
  explicit Matching(int ranks) : Matching(ranks, Options()) {}
  Matching(int ranks, Options options);

  /// `bytes` are borrowed until the operation is complete.
  struct Send {
    Rank to = 0;
    std::uint16_t channel = 0;
    std::uint32_t tag = 0;
    DType dtype = DType::kUInt8;
    std::int64_t count = 0;
    std::span<const std::byte> bytes = {};
  };
  struct Receive {
    Rank from = 0;  ///< or kAnyRank
    std::uint16_t channel = 0;
    std::uint32_t tag = 0;
    DType dtype = DType::kUInt8;
    std::int64_t count = 0;
    std::span<std::byte> bytes = {};
  };

  /// A record for `to`. `payload` goes with it; when it has left, sent() is to be called with
  /// `send` if that is not 0.
  struct Outgoing {
    Rank to = 0;
    MessageRecord record;
    std::span<const std::byte> payload = {};
    Id send = 0;
  };
  /// Appends a kData to `out`, in pieces of at most `most` bytes.
  static void cut(const Outgoing& data, std::size_t most, std::deque<Outgoing>& out);
  /// The bytes of a long message, or a piece of them, lie at the sender. They are to be brought to
  /// `to`, which is followed by fetched(), or to be asked for by clear().
  struct Fetch {
    Rank from = 0;
    Id receive = 0;
    MessageRecord offer;  ///< kReadyToSend or kData
    std::span<std::byte> to;
  };
  struct Completion {
    Id operation = 0;
    Rank peer = 0;  ///< whose message it is, or who receives it
  };
  /// A rank that takes part no more, and why.
  struct Ended {
    Rank rank = 0;
    Status why;
  };
  /// What is to be done after a call, by whoever drives.
  struct Effects {
    std::vector<Outgoing> records;
    std::vector<Fetch> fetches;
    std::vector<Completion> completions;
    std::vector<Ended> ended;  ///< of the driver's own
    Status mismatch;           ///< kMismatch: a message and its receive differ in dtype or count
  };

  /// Whether a message waits for its receive only because credit is missing, which may have come.
  bool needs_credit(Rank to, std::uint64_t bytes) const;
  void send(Id id, const Send& send, Effects& out);
  void receive(Id id, const Receive& receive, Effects& out);
  /// Of anything but kData. `payload`: the bytes of a kEager; used during the call only. kCorrupt:
  /// no sender that follows the rules sends this.
  Status arrived(Rank from, const MessageRecord& record, std::span<const std::byte> payload,
                 Effects& out);
  /// Asks the sender for the bytes of a Fetch.
  void clear(const Fetch& fetch, Effects& out);
  /// Where the bytes of a kData go. Once for each piece, in their order; else kCorrupt.
  Result<Fetch> landing(Rank from, const MessageRecord& record);
  /// The bytes of a Fetch are there. `by_memory`: they were read in the sender's memory, which has
  /// to know.
  void fetched(const Fetch& fetch, bool by_memory, Effects& out);
  /// An Outgoing has left; the memory of its payload is needed no more.
  void sent(Rank to, Id send, Effects& out);

 private:
  struct Offered {
    Send what;
    bool cleared = false;  // kData has been sent
  };
  struct Posted {
    Id id;
    Receive what;
  };
  struct Unexpected {
    Rank from;
    MessageRecord record;
    std::vector<std::byte> payload;
  };
  struct Matched {
    Receive what;
    Rank from;
    MessageRecord offer;
    enum class State : std::uint8_t { kOffered, kCleared, kLanding } state = State::kOffered;
    std::uint64_t landed = 0, fetched = 0;  // bytes: that have a place, and that are there
  };

  static bool fits(const Receive& receive, Rank from, const MessageRecord& record);
  void take(const Posted& posted, Rank from, const MessageRecord& record,
            std::span<const std::byte> payload, Effects& out);
  void give_credit(Rank from, std::uint64_t bytes, Effects& out);
  Offered* offered_to(Rank peer, Id send);

  static Status belongs_to_nothing(Rank from, const MessageRecord& record);

  const Options options_;
  std::map<Id, Offered> offers_;       // long messages that this rank sends
  std::list<Posted> posted_;           // in the order posted
  std::list<Unexpected> unexpected_;   // in the order of arrival
  std::map<Id, Matched> matched_;      // long messages whose bytes are on their way
  std::vector<std::uint64_t> ahead_;   // by rank: bytes sent eagerly, for which no credit came
  std::vector<std::uint64_t> credit_;  // by rank: bytes received, for which none was given
};

/// What a sender may surely send ahead to each rank, records included: credit comes by halves of
/// the window.
inline constexpr std::uint64_t kSureAhead = Matching::Options().eager_window / 2;

}  // namespace stormo::comm
