// How a member that has not got the state gets it from those that have it.
#include <stormo/train/run/elastic_run.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <stormo/base/units.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {
namespace {

/// Of slices of the state.
constexpr std::uint32_t kSliceTag = 0x73746174;

}  // namespace

Rank ElasticRun::first_donor(int part) const {
  const protocol::ElasticRecord& record = session_.record();
  return session_.rank_of(*std::ranges::find_if(record.donors, [&](const std::string& d) {
    return record.part_of(d) == static_cast<std::uint32_t>(part);
  }));
}

// What slices do not have. Of each part of the model by its first donor.
Status ElasticRun::take_rest() {
  if (is_local()) return take_buffers(first_donor(0));
  for (int p = 0; p < parts(); ++p) {
    std::vector<std::int64_t> steps = state().steps();
    if (p != part()) {
      steps.resize(parameters_of_stage(run_.setup.plan.model, *run_.setup.task.module, p).size());
    }
    STORMO_RETURN_IF_ERROR(run_.world.broadcast(std::span<std::int64_t>(steps), first_donor(p)));
    if (p == part() && !session_.is_donor()) state().set_steps(steps);
  }
  return parts() == 1 ? take_buffers(first_donor(0)) : run_.state.share_buffers();
}

// Running statistics are no part of the state that is compared; a newcomer gets those of a donor.
Status ElasticRun::take_buffers(Rank from) {
  TensorMap buffers;
  for (const auto& b : run_.setup.task.module->named_buffers()) {
    const bool is_own = session_.is_donor();
    buffers.emplace(b.key(), is_own ? b.value().clone() : b.value());
  }
  return broadcast_values(run_.world, buffers, from);
}

// As they were after the step before. They travel beside the step's own collectives.
void ElasticRun::exchange_slices(const protocol::RunStep& order) {
  if (is_local()) return;
  const protocol::ElasticRecord& record = session_.record();
  const Rank me = run_.world.rank();
  const bool receives = order.receives && gets_slices(record.members[static_cast<std::size_t>(me)]);
  const auto donor = [&](std::uint32_t slice, std::string_view receiver) {
    return session_.rank_of(protocol::Healing::donor_of(record, slice, receiver));
  };
  slice_bytes_.clear();
  for (std::uint32_t s = 0; s < order.slices.count; ++s) {
    const std::uint32_t slice = order.slices.first + s;
    if (slice >= state().slices()) return;  // other parts of the model have more
    std::vector<Rank> to;                   // from this rank
    for (const protocol::ElasticEntry& m : record.members) {
      if (gets_slices(m) && donor(slice, m.id.identity) == me)
        to.push_back(session_.rank_of(m.id.identity));
    }
    if (!receives && to.empty()) continue;
    std::vector<std::byte>& bytes = slice_bytes_.emplace_back(state().bytes(slice));
    const comm::Buffer data{bytes.data(), std::ssize(bytes), DType::kUInt8};
    if (receives) {
      slices_.push_back(run_.world.recv_async(data, donor(slice, session_.identity()), kSliceTag));
      continue;
    }
    state().read(slice, bytes.data());
    for (const Rank rank : to) slices_.push_back(run_.world.send_async(data, rank, kSliceTag));
  }
}

Status ElasticRun::finish_slices() {
  Status all;
  for (comm::Work& slice : std::exchange(slices_, {})) {
    const Status one = slice.wait();
    if (all.ok()) all = one;
  }
  STORMO_RETURN_IF_ERROR(all);
  if (is_local()) return {};
  const auto all_slices = static_cast<std::uint32_t>(state().slices());
  if (!order_.receives || order_.slices.first >= all_slices) return {};
  const std::string me = session_.identity();
  const std::uint32_t end = std::min(order_.slices.first + order_.slices.count, all_slices);
  const bool is_last = end == all_slices;
  if (slice_bytes_.empty()) {
    if (is_last) session_.say("has the state: it shares that of its host");
    return {};
  }
  for (std::uint32_t slice = order_.slices.first; slice < end; ++slice) {
    const std::vector<std::byte>& bytes = slice_bytes_[slice - order_.slices.first];
    state().write(slice, bytes.data());
    const std::string& donor = protocol::Healing::donor_of(session_.record(), slice, me);
    const bool is_near = protocol::host_of(donor) == protocol::host_of(me);
    (is_near ? from_host_ : from_others_) += bytes.size();
  }
  state().finish();
  if (!is_last) return {};
  session_.say(fmt::format("has the state: {} from its host, {} from others",
                           format_bytes(from_host_), format_bytes(from_others_)));
  return {};
}

bool ElasticRun::is_state_needed() const {
  const std::int64_t step = run_.state.step;
  const TrainerOptions& o = run_.options;
  return agreed_.save_now || agreed_.save_failed || is_due(step, o.eval_every) ||
         is_due(step, o.verify_every) || is_due(step, o.checkpoint.every);
}

// Replicas evaluate and save together, each with what it has: whoever is being healed gets all that
// is missing before. What comes of the slices in later steps it has then already. Of pipelines
// those that have the state show it to others, and save it.
Status ElasticRun::complete_state(std::uint64_t next_step) {
  if (is_local() || parts() > 1 || !session_.is_healing(next_step)) return {};
  const protocol::ElasticRecord& record = session_.record();
  const Rank from = first_donor(0);
  const bool writes = gets_slices(record.members[static_cast<std::size_t>(run_.world.rank())]);
  for (std::size_t slice = 0; slice < state().slices(); ++slice) {
    std::vector<std::byte> bytes(state().bytes(slice));
    if (run_.world.rank() == from) state().read(slice, bytes.data());
    STORMO_RETURN_IF_ERROR(
        run_.world.broadcast(comm::Buffer{bytes.data(), std::ssize(bytes), DType::kUInt8}, from));
    if (writes) state().write(slice, bytes.data());
  }
  if (writes) state().finish();
  return run_.world.barrier();  // ranks of its host may share what it has written
}

}  // namespace stormo::train
