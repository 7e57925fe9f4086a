#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace stormo::protocol {

// A register that a majority of acceptors has (CASPaxos, docs/adr/0034-membership-register.md): one
// value with a version, changed by compare-and-swap.

/// The number of an attempt. No two proposers have the same one; zero is that of no attempt.
struct Ballot {
  std::uint64_t counter = 0;
  std::uint64_t proposer = 0;
  auto operator<=>(const Ballot&) const = default;
};

struct RegisterValue {
  std::uint64_t version = 0;  ///< 0: nothing has been written yet
  Ballot origin{};            ///< under which the value was first proposed
  std::string bytes{};
  bool operator==(const RegisterValue&) const = default;
};

/// What an acceptor may never forget.
struct AcceptorState {
  Ballot promised{};  ///< it takes part in no earlier attempt
  Ballot accepted{};  ///< under which it has accepted `value`
  RegisterValue value{};
  bool operator==(const AcceptorState&) const = default;
};

/// Of a proposer to an acceptor. The same one may come several times, and in any order.
struct RegisterRequest {
  /// Values are wire format: append only.
  enum class Kind : std::uint8_t {
    kAsk = 1,      ///< only asks what the acceptor has; without a ballot
    kPrepare = 2,  ///< asks for the promise to take part in no earlier attempt
    kAccept = 3,   ///< asks to accept `value`
  };
  Kind kind = Kind::kAsk;
  std::uint64_t round = 0;  ///< of its proposer, which raises it with each new request
  Ballot ballot{};
  RegisterValue value{};  ///< kAccept only
  bool operator==(const RegisterRequest&) const = default;
};

struct RegisterReply {
  std::uint64_t round = 0;  ///< of the request
  bool granted = false;
  AcceptorState state{};  ///< after the request
  bool operator==(const RegisterReply&) const = default;
};

}  // namespace stormo::protocol
