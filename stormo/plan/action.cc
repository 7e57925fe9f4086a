#include <stormo/plan/action.h>

#include <array>

namespace stormo::plan {
namespace {

using enum ActionKind;
using enum RangeOf;
using enum AxesOf;
using enum Period;
using enum Scope;

// colors
constexpr std::uint32_t kBlue = 0x7fb2e5, kGreen = 0x8fce8f, kLightGreen = 0xb5e3b5,
                        kDarkGreen = 0x6fae6f, kOrange = 0xf2b56b, kViolet = 0xb79be0,
                        kRed = 0xe58f8f;

// clang-format off
constexpr std::array<ActionRow, kNumActionKinds> kRows = {{
  {.kind = kLoad, .word = "load"},
  {.kind = kCount, .word = "count", .scope = kRanks, .asynchronous = true},
  {.kind = kForward, .word = "forward", .range = kSegments, .micro_batch = true,
   .needs = {Value::kOutput, Value::kParameters}, .color = kBlue},
  {.kind = kLoss, .word = "loss", .axes = kOfOutput, .micro_batch = true},
  {.kind = kRecompute, .word = "recompute", .range = kSegments, .micro_batch = true, .delayed = true,
   .needs = {Value::kParameters}},
  {.kind = kBackward, .word = "backward", .range = kSegments, .micro_batch = true,
   .adds_gradients = true, .delayed = true, .needs = {Value::kOutputGradient, Value::kParameters},
   .color = kGreen},
  {.kind = kBackwardInput, .word = "backward_input", .range = kSegments, .micro_batch = true,
   .delayed = true, .needs = {Value::kOutputGradient, Value::kParameters}, .color = kLightGreen},
  {.kind = kBackwardWeight, .word = "backward_weight", .range = kSegments, .micro_batch = true,
   .adds_gradients = true, .delayed = true, .needs = {Value::kParameters}, .color = kDarkGreen},
  {.kind = kMoveActivation, .word = "move_activation", .range = kSegments, .scope = kReplica,
   .micro_batch = true, .makes = {Value::kOutput}},
  {.kind = kMoveGradient, .word = "move_gradient", .range = kSegments, .scope = kReplica,
   .micro_batch = true, .delayed = true, .makes = {Value::kOutputGradient}},
  {.kind = kAllGather, .word = "all_gather", .range = kParameters, .axes = kOne, .scope = kRanks,
   .asynchronous = true, .makes = {Value::kParameters}, .color = kViolet},
  {.kind = kReshard, .word = "reshard", .range = kParameters, .axes = kOne, .scope = kRanks,
   .needs = {Value::kParameters}},
  {.kind = kAllReduce, .word = "all_reduce", .range = kParameters, .axes = kOneOrMore,
   .scope = kRanks, .asynchronous = true, .delayed = true, .reduces = true,
   .needs = {Value::kGradients}, .makes = {Value::kGradients}, .color = kRed},
  {.kind = kReduceScatter, .word = "reduce_scatter", .range = kParameters, .axes = kOne,
   .scope = kRanks, .asynchronous = true, .reduces = true, .makes = {Value::kGradients},
   .color = kRed},
  {.kind = kReleaseGradients, .word = "release_gradients", .range = kParameters, .scope = kRanks,
   .needs = {Value::kGradients}},
  {.kind = kSumTied, .word = "sum_tied", .range = kParameters, .scope = kReplica, .delayed = true},
  {.kind = kSumWhole, .word = "sum_whole", .range = kParameters, .scope = kReplica, .delayed = true},
  {.kind = kFindUnused, .word = "find_unused", .scope = kRanks, .needs_at_end = {Value::kGradients}},
  {.kind = kShareGradients, .word = "share_gradients", .range = kParameters, .axes = kOne,
   .scope = kRanks, .barrier = true},
  {.kind = kShareParameters, .word = "share_parameters", .range = kParameters, .axes = kOne,
   .scope = kRanks, .barrier = true},
  {.kind = kPull, .word = "pull", .range = kParameters, .axes = kOneOrMore,
   .period = kFirstOfPeriod, .scope = kServers, .asynchronous = true, .changes_parameters = true,
   .makes = {Value::kParameters}, .color = kViolet},
  {.kind = kPush, .word = "push", .range = kParameters, .axes = kOne, .period = kLastOfPeriod,
   .scope = kServers, .asynchronous = true, .makes = {Value::kGradients}, .color = kRed},
  {.kind = kAverage, .word = "average", .range = kParameters, .axes = kOneOrMore,
   .period = kLastOfPeriod, .scope = kRanks, .changes_parameters = true, .color = kRed},
  {.kind = kExchange, .word = "exchange", .range = kParameters, .axes = kOne,
   .period = kFirstOfPeriod, .scope = kServers, .color = kRed},
  {.kind = kMix, .word = "mix", .range = kParameters, .axes = kOne, .scope = kRanks,
   .changes_parameters = true, .color = kRed},
  {.kind = kNorm, .word = "norm", .axes = kAny, .needs = {Value::kGradients}},
  {.kind = kUnscale, .word = "unscale"},
  {.kind = kClip, .word = "clip"},
  {.kind = kUpdate, .word = "update", .range = kParameters, .axes = kAny, .delayed = true,
   .changes_parameters = true, .needs = {Value::kGradients}, .color = kOrange},
  {.kind = kAgree, .word = "agree", .period = kLastOfPeriod, .scope = kRanks, .all_batches = true},
}};
// clang-format on

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].kind != static_cast<ActionKind>(i) || kRows[i].word.empty()) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::span<const ActionRow, kNumActionKinds> action_rows() { return kRows; }

const ActionRow& row_of(ActionKind kind) { return kRows[static_cast<std::size_t>(kind)]; }

std::string_view to_string(ActionKind kind) { return row_of(kind).word; }

}  // namespace stormo::plan
