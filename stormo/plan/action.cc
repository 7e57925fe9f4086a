#include <stormo/plan/action.h>

#include <array>

namespace stormo::plan {
namespace {

using enum ActionKind;
using enum RangeOf;
using enum AxesOf;
using enum Period;
using enum Scope;
using enum Placement;

// colors
constexpr std::uint32_t kBlue = 0x7fb2e5, kGreen = 0x8fce8f, kLightGreen = 0xb5e3b5,
                        kDarkGreen = 0x6fae6f, kOrange = 0xf2b56b, kViolet = 0xb79be0,
                        kRed = 0xe58f8f;

// clang-format off
constexpr std::array<ActionRow, kNumActionKinds> kRows = {{
  {.kind = kLoad, .word = "load", .makes = {Value::kBatch}},
  {.kind = kChoose, .word = "choose", .makes = {Value::kChosen}},
  {.kind = kSumWeights, .word = "sum_weights", .scope = kRanks, .asynchronous = true,
   .makes = {Value::kWeights}, .numbers = {.count = 1, .over = Over::kDataAxes}},
  {.kind = kForward, .word = "forward", .range = kSegments, .micro_batch = true,
   .needs = {Value::kOutput, Value::kParameters, Value::kChosen}, .makes = {Value::kActivations},
   .color = kBlue},
  {.kind = kLoss, .word = "loss", .axes = kOfOutput, .micro_batch = true, .makes = {Value::kLoss}},
  {.kind = kRecompute, .word = "recompute", .range = kSegments, .micro_batch = true,
   .delayed = true, .needs = {Value::kParameters}, .makes = {Value::kActivations}},
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
   .asynchronous = true, .makes = {Value::kParameters},
   .change = {{Value::kParameters, kShard, kReplicate}}, .color = kViolet},
  {.kind = kReshard, .word = "reshard", .range = kParameters, .axes = kOne, .scope = kRanks,
   .needs = {Value::kParameters}, .change = {{Value::kParameters, kReplicate, kShard}}},
  {.kind = kAllReduce, .word = "all_reduce", .range = kParameters, .axes = kOneOrMore,
   .scope = kRanks, .asynchronous = true, .delayed = true, .reduces = true,
   .needs = {Value::kGradients}, .makes = {Value::kGradients},
   .change = {{Value::kGradients, kPartial, kReplicate}}, .color = kRed},
  {.kind = kReduceScatter, .word = "reduce_scatter", .range = kParameters, .axes = kOne,
   .scope = kRanks, .asynchronous = true, .reduces = true, .needs = {Value::kWeights},
   .makes = {Value::kGradients}, .change = {{Value::kGradients, kPartial, kShard}}, .color = kRed},
  {.kind = kReleaseGradients, .word = "release_gradients", .range = kParameters, .scope = kRanks,
   .needs = {Value::kGradients, Value::kTerms}},
  {.kind = kAllReduceTied, .word = "all_reduce_tied", .range = kParameters, .scope = kReplica,
   .delayed = true, .change = {{Value::kGradients, kPartial, kStaged}}},
  {.kind = kAllReduceUnsplit, .word = "all_reduce_unsplit", .range = kParameters,
   .scope = kReplica, .delayed = true, .change = {{Value::kGradients, kPartial, kSplit}}},
  {.kind = kTrack, .word = "track", .range = kParameters, .axes = kOne, .scope = kRanks,
   .change = {{Value::kGradients, kPartial, kDiverged}}, .color = kRed},
  {.kind = kFindUnused, .word = "find_unused", .scope = kRanks, .needs_at_end = {Value::kGradients},
   .makes = {Value::kUnused}, .numbers = {1, DType::kUInt8, true, Over::kDataAxes}},
  {.kind = kShareGradients, .word = "share_gradients", .range = kParameters, .axes = kOne,
   .scope = kRanks, .barrier = true, .change = {{Value::kGradients, kPartial, kShared}}},
  {.kind = kShareParameters, .word = "share_parameters", .range = kParameters, .axes = kOne,
   .scope = kRanks, .barrier = true, .change = {{Value::kParameters, kShard, kShared}}},
  {.kind = kPull, .word = "pull", .range = kParameters, .axes = kOneOrMore,
   .period = kFirstOfPeriod, .scope = kServers, .asynchronous = true, .changes_parameters = true,
   .makes = {Value::kParameters}, .change = {{Value::kParameters, kRemote, kDiverged}},
   .color = kViolet},
  {.kind = kPush, .word = "push", .range = kParameters, .axes = kOne, .period = kLastOfPeriod,
   .scope = kServers, .asynchronous = true, .needs = {Value::kUnscaled, Value::kClipped},
   .makes = {Value::kGradients}, .change = {{Value::kGradients, kPartial, kRemote}}, .color = kRed},
  {.kind = kAverage, .word = "average", .range = kParameters, .axes = kOneOrMore,
   .period = kLastOfPeriod, .scope = kRanks, .changes_parameters = true, .averages_state = true,
   .change = {{Value::kParameters, kDiverged, kReplicate}}, .color = kRed},
  {.kind = kAverageParameters, .word = "average_parameters", .range = kParameters,
   .axes = kOneOrMore, .period = kLastOfPeriod, .scope = kRanks, .asynchronous = true,
   .staggered = true, .changes_parameters = true, .makes = {Value::kAveraged},
   .change = {{Value::kParameters, kDiverged, kReplicate}}, .color = kRed},
  {.kind = kAverageState, .word = "average_state", .range = kParameters, .axes = kOneOrMore,
   .period = kLastOfPeriod, .scope = kRanks, .changes_parameters = true, .averages_slot = true,
   .color = kRed},
  {.kind = kOuterUpdate, .word = "outer_update", .range = kParameters, .period = kLastOfPeriod,
   .staggered = true, .changes_parameters = true, .needs = {Value::kAveraged},
   .change = {{Value::kParameters, kReplicate, kReplicate}},
   .color = kOrange},
  {.kind = kElasticAverage, .word = "elastic_average", .range = kParameters, .axes = kOne,
   .period = kFirstOfPeriod, .scope = kServers,
   .change = {{Value::kParameters, kDiverged, kRemote}}, .color = kRed},
  {.kind = kMix, .word = "mix", .range = kParameters, .axes = kOne, .scope = kRanks,
   .asynchronous = true, .changes_parameters = true, .makes = {Value::kMixed},
   .change = {{Value::kParameters, kDiverged, kDiverged}}, .color = kRed},
  {.kind = kTournament, .word = "tournament", .range = kParameters, .axes = kOne,
   .period = kLastOfPeriod, .scope = kRanks, .changes_parameters = true, .selects = true,
   .change = {{Value::kParameters, kDiverged, kDiverged}}, .color = kRed},
  {.kind = kExchangeModels, .word = "exchange_models", .range = kParameters, .axes = kOne,
   .period = kLastOfPeriod, .scope = kRanks, .copies = true,
   .change = {{Value::kParameters, kDiverged, kDiverged}}, .color = kRed},
  {.kind = kNorm, .word = "norm", .axes = kAny, .needs = {Value::kGradients},
   .makes = {Value::kNorm}, .numbers = {.count = 1}},
  {.kind = kUnscale, .word = "unscale", .needs = {Value::kNorm}, .makes = {Value::kUnscaled},
   .numbers = {1, DType::kInt64, false, Over::kAllAxes}},
  {.kind = kClip, .word = "clip", .needs = {Value::kNorm, Value::kUnscaled},
   .makes = {Value::kClipped}},
  {.kind = kCommit, .word = "commit", .scope = kRanks,
   .needs = {Value::kGradients, Value::kUnscaled, Value::kClipped}, .makes = {Value::kCommitted},
   .numbers = {kCommittedNumbers, DType::kInt64, false, Over::kAllAxes}},
  {.kind = kUpdate, .word = "update", .range = kParameters, .axes = kAny, .delayed = true,
   .changes_parameters = true,
   .needs = {Value::kGradients, Value::kUnscaled, Value::kClipped, Value::kCommitted,
             Value::kMixed},
   .makes = {Value::kUpdated}, .numbers = {.count = 2, .of_each_parameter = true},
   .color = kOrange},
  {.kind = kAgree, .word = "agree", .period = kLastOfPeriod, .scope = kRanks, .staggered = true,
   .all_batches = true, .numbers = {.count = 1, .over = Over::kAllAxes}},
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
