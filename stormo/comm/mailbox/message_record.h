#pragma once

#include <cstddef>
#include <cstdint>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// What the mailboxes of two ranks tell each other. Both run the same version on the same kind of
/// machine: a record goes through rings and sockets as it lies in memory.
///
/// A short message is one kEager. A long one begins with kReadyToSend. In a host its receiver reads
/// the bytes where they lie, and answers with kDone. Between hosts, and where the kernel does not
/// let it read them, it answers with kClearToSend, and the sender sends kData: all bytes in one
/// record, or pieces in their order.
struct MessageRecord {
  enum class Kind : std::uint8_t {
    kEager,        ///< a message; its bytes follow
    kReadyToSend,  ///< a message whose bytes wait at the sender
    kClearToSend,  ///< has been received up to its bytes, which may be sent
    kData,         ///< these; they follow, or in a host lie at `address` in the sender's Arena
    kDone,         ///< the receiver needs the sender's memory at `address` no more
    kCredit        ///< kEager messages of `bytes` in all, with records, have been received
  };
  Kind kind = Kind::kEager;
  DType dtype = DType::kUInt8;
  std::uint16_t channel = 0;  ///< messages of different channels never match
  std::uint32_t tag = 0;
  std::int64_t count = 0;     ///< elements; kData: bytes of the message before these
  std::uint64_t bytes = 0;    ///< of the message; kData: of the piece
  std::uint64_t send = 0;     ///< the sender's number of the operation; but for kEager, kCredit
  std::uint64_t receive = 0;  ///< the receiver's; kClearToSend and kData
  std::uint64_t address = 0;  ///< in a host: where these bytes lie in the sender's process
  /// Between hosts. The lower half: of the record and its number on the line. The upper half, where
  /// it is asked for: of the bytes.
  std::uint64_t checksum = 0;

  /// Whether a rank must wait until this has left before it may leave itself.
  bool must_leave() const { return kind != Kind::kCredit; }
};
static_assert(sizeof(MessageRecord) == 56);

}  // namespace stormo::comm
