#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/protocol/elastic/ledger.h>
#include <stormo/protocol/elastic/membership_change.h>

namespace stormo::protocol {

// What an ElasticMember is told, and what it has done. A part is what it has ordered by one of
// StartGroup, RunStep, AgreeOn, ApplyUpdate and HashState: there is one at a time, and each has one
// outcome, which carries the epoch of its order. Everything else may come at any time.

/// Time has passed: at wakes_at() at the latest.
struct ElasticTick {};
/// From another member, by a connection that has been authenticated.
struct ElasticHeard {
  ElasticMessage message;
};
/// A process has ended, for certain: its pidfd says so, the launcher, or its host's kernel, which
/// has closed its connection. A connection that times out says nothing of the kind.
struct ProcessEnded {
  MemberId id;
};
/// What the main thread does: it has come forward, and whether it waits for other members.
struct MainThread {
  bool is_waiting = false;
};
/// A person or scheduler asks for the end of the job, after the present step.
struct StopAsked {};
/// This member is to leave at the next edge of a step: a notice of preemption, a smaller job. It
/// stays as long as the others lack the state, or would be too few. If all are told, all stop.
struct LeaveAsked {};

/// Of StartGroup, RunStep or AgreeOn: it has failed here, or was aborted. When this is said nobody
/// writes into this member's buffers any more, and it does nothing more for this part.
struct PartFailed {
  Epoch epoch = 0;
  std::string blamed{};  ///< identity of the member to which the connection broke; may be empty
};
/// Of StartGroup.
struct GroupStarted {
  Epoch epoch = 0;
};
/// Of PrepareGroup: it can begin at once.
struct GroupReady {
  Epoch epoch = 0;
  std::uint32_t group = 0;
};
/// Of RunStep: the whole reduced gradient is here, beside the parameters, which are unchanged.
struct StepReduced {
  Epoch epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t gradient_hash = 0;
};
enum class AgreeVerdict : std::uint8_t { kCommit, kGradientsDiffer, kStatesDiffer };
/// Of AgreeOn: all members have called it with the same epoch and step.
struct StepAgreed {
  Epoch epoch = 0;
  std::uint64_t step = 0;
  /// States are compared among those that gave a hash other than 0. If they differ that is the
  /// verdict, whatever the gradients are.
  AgreeVerdict verdict = AgreeVerdict::kCommit;
  bool stops = false;    ///< a member was asked to
  bool changes = false;  ///< a member wants another epoch after this step
};
/// Of ApplyUpdate.
struct UpdateApplied {
  Epoch epoch = 0;
};
/// Of HashState: of parameters, optimizer state and sample position; never 0.
struct StateHashed {
  Epoch epoch = 0;
  std::uint64_t hash = 0;
};
/// Of ReadRegister or SwapRecord. Empty: the register was not reached in time, or the outcome of a
/// swap is not known.
struct RegisterAnswer {
  std::optional<ElasticRecord> present{};
};

using ElasticInput = std::variant<ElasticTick, ElasticHeard, ProcessEnded, MainThread, StopAsked,
                                  LeaveAsked, PartFailed, GroupStarted, GroupReady, StepReduced,
                                  StepAgreed, UpdateApplied, StateHashed, RegisterAnswer>;

/// To the present process of an identity. May be lost.
struct SendMessage {
  std::string to;
  ElasticMessage message;
};
/// The part in progress is to end at once, wherever it waits.
struct AbortPart {
  Epoch epoch = 0;
};
struct ReadRegister {};
/// Compare-and-swap: the present record has the epoch before it.
struct SwapRecord {
  ElasticRecord next;
};
/// Makes the group of the record's members, or takes the one that was prepared. An older one is
/// failed, and is destroyed.
struct StartGroup {
  ElasticRecord record;
  std::vector<MemberGone> gone{};  ///< since the last group that has started
};
/// Beside all parts: makes a group of these members, which may be that of the next epoch. One that
/// was prepared before is given up. Where it fails nothing is said.
struct PrepareGroup {
  ElasticRecord wish;
};
/// Forward, backward and reduction of one step.
struct RunStep {
  Epoch epoch = 0;
  std::uint64_t step = 0;
  SampleRange batch{};  ///< of all members
  SampleRange part{};   ///< of this one
  /// Donors send these as they were after the step before, in turns; the others receive them.
  SliceRange slices{};
  bool receives = false;
};
struct AgreeOn {
  Epoch epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t gradient_hash = 0;
  std::uint64_t state_hash = 0;  ///< after the step before; 0: is not compared
  bool stops = false;
  bool changes = false;
};
/// By the gradient of `step` that is held, to all slices.
struct ApplyUpdate {
  Epoch epoch = 0;
  std::uint64_t step = 0;
};
struct HashState {
  Epoch epoch = 0;
  std::uint64_t step = 0;
};
/// The step is done for good: it may be reported, and a checkpoint of it may be published, under
/// this epoch.
struct StepCommitted {
  Epoch epoch = 0;
  std::uint64_t step = 0;
};
/// It goes on when it can, in another epoch; said once. Others may go on without it meanwhile: it
/// lets go of what only one of them may have.
struct PauseMember {
  std::string why;
};
struct ResumeMember {};
struct EndMember {
  bool is_failure = false;
  std::string why;
  bool has_left = false;  ///< as it was asked to; the job goes on
};
/// Others go on without this process, whose part does not end. It is to end at once, whatever it
/// does: then another one can take its place.
struct EndProcess {
  std::string why;
};

using ElasticAction = std::variant<SendMessage, AbortPart, ReadRegister, SwapRecord, StartGroup,
                                   PrepareGroup, RunStep, AgreeOn, ApplyUpdate, HashState,
                                   StepCommitted, PauseMember, ResumeMember, EndMember, EndProcess>;

}  // namespace stormo::protocol
