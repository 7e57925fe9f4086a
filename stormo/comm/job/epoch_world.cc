#include <stormo/comm/job/epoch_world.h>

#include <utility>

#include <stormo/comm/job/refusal_lines.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::comm {
namespace {

/// For telling others what they also find out by themselves.
constexpr Duration kTelling = std::chrono::milliseconds(200);

// The number of a group that is made beside an epoch: beyond all epochs.
constexpr Epoch kBeside = Epoch{1} << 31;
constexpr int kNumberBits = 8;

Epoch meeting_of(Epoch epoch, std::uint32_t number) {
  return kBeside | epoch << kNumberBits | number;
}
Epoch epoch_of(Epoch meeting) {
  return meeting < kBeside ? meeting : (meeting & ~kBeside) >> kNumberBits;
}

}  // namespace

EpochWorld::EpochWorld(Options options, std::unique_ptr<EpochStore> own_store,
                       std::unique_ptr<Communicator> group)
    : options_(std::move(options)), own_store_(std::move(own_store)), group_(std::move(group)) {}

Result<std::unique_ptr<EpochWorld>> EpochWorld::open(Options options) {
  STORMO_ASSIGN_OR_RETURN(auto store, EpochStore::start({.listen = options.listen,
                                                         .ports = options.settings.ports,
                                                         .secret = options.secret,
                                                         .on_refused = say_refusals("store"),
                                                         .on_set = {}}));
  transport::Rendezvous alone;
  static_cast<transport::JobSettings&>(alone) = options.settings;
  alone.local_size = options.local_size;
  STORMO_ASSIGN_OR_RETURN(auto group, join(alone));
  return std::unique_ptr<EpochWorld>(
      new EpochWorld(std::move(options), std::move(store), std::move(group)));
}

Status EpochWorld::enter(const transport::Rendezvous& r) {
  STORMO_ASSIGN_OR_RETURN(SharedHealth health, begin(r.epoch));
  auto made = join_epoch(r, options_.silence, std::move(health));
  const Status entered = made.ok() ? enter(*std::move(made), r.epoch) : made.status();
  const std::lock_guard lock(mutex_);
  next_epoch_ = 0;
  next_health_.reset();
  return entered;
}

Result<EpochGroup> EpochWorld::make(transport::Rendezvous r, std::uint32_t number,
                                    SharedHealth health) const {
  r.epoch = meeting_of(r.epoch, number);
  return join_epoch(r, options_.silence, std::move(health));
}

Result<EpochWorld::SharedHealth> EpochWorld::begin(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  if (failed_epoch_ >= epoch) return failed_cause_;
  next_epoch_ = epoch;
  next_health_ = std::make_shared<transport::Health>();
  return next_health_;
}

Status EpochWorld::enter(EpochGroup made, Epoch epoch) {
  STORMO_RETURN_IF_ERROR(made.health->status());
  take_former();  // destroys it
  {
    const std::lock_guard lock(mutex_);
    if (failed_epoch_ >= epoch) return failed_cause_;
    sent_before_ += group_->bytes_sent();
    former_ = {.group = std::exchange(group_, std::move(made.group)),
               .job_watch = std::exchange(job_watch_, std::move(made.job_watch)),
               .health = std::exchange(health_, std::move(made.health))};
    epoch_ = epoch;
  }
  group_->set_sink(sink_);
  return {};
}

void EpochWorld::destroy(EpochGroup group) {
  group = {};
  own_store_->forget([present = epoch()](Epoch meeting) { return epoch_of(meeting) < present; });
}

Epoch EpochWorld::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

// First here, where it needs nobody: the process that serves the Store may be stopped.
void EpochWorld::fail_epoch(Epoch epoch, const Status& cause) {
  std::shared_ptr<JobWatch> job_watch;
  {
    const std::lock_guard lock(mutex_);
    if (epoch >= failed_epoch_) {
      failed_epoch_ = epoch;
      failed_cause_ = cause;
    }
    if (epoch == next_epoch_) next_health_->fail(cause);
    if (epoch != epoch_ || health_ == nullptr) return;
    health_->fail(cause);
    job_watch = job_watch_;
  }
  if (job_watch == nullptr) return;
  static_cast<void>(job_watch->store().set_if_absent(protocol::kFailureKey, encode_failure(cause),
                                                     Deadline::after(kTelling)));
}

Status EpochWorld::status() const {
  const std::lock_guard lock(mutex_);
  return group_->status();
}

void EpochWorld::fail(Status cause) {
  const std::lock_guard lock(mutex_);
  group_->fail(std::move(cause));
}

void EpochWorld::set_sink(Sink* sink) {
  sink_ = sink;
  group_->set_sink(sink);
}

}  // namespace stormo::comm
