#include <stormo/train/gradient_reducer.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <stormo/tensor/dtype.h>

namespace stormo::train {
namespace {

std::vector<NamedParameter> checked(std::vector<NamedParameter> parameters) {
  for (const NamedParameter& p : parameters) {
    Status supported = tensor::dtype_of(p.tensor.scalar_type()).status();
    if (supported.ok() && !(p.tensor.is_cpu() && p.tensor.layout() == torch::kStrided)) {
      supported = invalid_argument("only dense tensors on the CPU can be reduced");
    }
    throw_if_error(supported.within("gradient of '" + p.name + "'"));
  }
  return parameters;
}

std::int64_t bytes_of(const std::vector<NamedParameter>& parameters) {
  std::int64_t bytes = 0;
  for (const NamedParameter& p : parameters) bytes += static_cast<std::int64_t>(p.tensor.nbytes());
  return bytes;
}

}  // namespace

GradientReducer::GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                                 const Reduction& how)
    : world_(world),
      parameters_(checked(std::move(parameters))),
      algorithm_(how.algorithm),
      travels_as_(how.travels_as),
      trial_(world, how.overlap, bytes_of(parameters_)),
      order_(parameters_.size()) {
  std::iota(order_.rbegin(), order_.rend(), std::size_t{0});
  build_buckets();
}

GradientReducer::~GradientReducer() = default;

// A bucket takes neighbours in order_ of one element type until it is full; inline, all of a type.
void GradientReducer::build_buckets() {
  struct Filling {
    std::vector<std::size_t> members;
    std::int64_t bytes = 0;
  };
  const bool split = trial_.current().kind == Overlap::Kind::kBuckets;
  std::vector<Filling> full;
  std::vector<Filling> filling;  // one per element type
  const auto type_of = [this](std::size_t i) { return parameters_[i].tensor.scalar_type(); };
  for (const std::size_t i : order_) {
    auto bucket = std::find_if(filling.begin(), filling.end(), [&](const Filling& f) {
      return type_of(f.members.front()) == type_of(i);
    });
    if (bucket == filling.end()) bucket = filling.emplace(filling.end());
    bucket->members.push_back(i);
    bucket->bytes += static_cast<std::int64_t>(parameters_[i].tensor.nbytes());
    if (split && bucket->bytes >= trial_.current().bucket_bytes) {
      full.push_back(std::move(*bucket));
      filling.erase(bucket);
    }
  }
  full.insert(full.end(), filling.begin(), filling.end());

  buckets_.clear();
  members_.clear();
  missing_.clear();
  bucket_of_.assign(parameters_.size(), 0);
  for (Filling& f : full) {
    std::vector<NamedParameter> members;
    for (const std::size_t i : f.members) {
      bucket_of_[i] = buckets_.size();
      members.push_back(parameters_[i]);
    }
    std::sort(f.members.begin(), f.members.end());
    members_.push_back(std::move(f.members));
    missing_.push_back(members.size());
    buckets_.push_back(
        std::make_unique<GradientBucket>(world_, std::move(members), algorithm_, travels_as_));
  }
  is_ready_.assign(parameters_.size(), false);
}

bool GradientReducer::overlaps() const {
  return world_.size() > 1 && trial_.current().kind == Overlap::Kind::kBuckets;
}

// Between hosts every bucket needs the sum of the weights: it is asked for once.
void GradientReducer::begin_pass() {
  if (total_asked_ || !overlaps() || world_.cross_size() == 1) return;
  total_asked_ = true;
  total_weight_ = weight_;
  const comm::Buffer total = comm::buffer_of(std::span(&total_weight_, 1));
  total_known_ = world_.all_reduce_async(std::span(&total, 1), comm::ReduceOp::kSum);
}

void GradientReducer::start_next_bucket() {
  begin_pass();
  // a failure is the group's: the bucket will tell
  if (total_asked_) static_cast<void>(total_known_.wait());
  buckets_[started_++]->start(weight_, total_asked_ ? total_weight_ : 0);
}

void GradientReducer::ready(std::size_t index) {
  // Whoever announces a gradient still holds it, so its bucket has to wait for the next
  // announcement: then it may be written where it lies.
  start_full_buckets();
  if (is_ready_[index]) {
    if (bucket_of_[index] >= started_) return;
    throw Error(invalid_argument(
        "the gradient of '" + parameters_[index].name +
        "' changed after its bucket was sent: it is used by several checkpointed parts of the "
        "model; reduce at the end of backward (Overlap::at_the_end())"));
  }
  is_ready_[index] = true;
  --missing_[bucket_of_[index]];
  if (!arrival_known_) arrival_.push_back(static_cast<std::int64_t>(index));
}

void GradientReducer::start_full_buckets() {
  if (held_ || !overlaps()) return;
  begin_pass();
  while (started_ < buckets_.size() && missing_[started_] == 0) start_next_bucket();
}

Status GradientReducer::reduce() {
  STORMO_RETURN_IF_ERROR(start());
  return finish([](std::size_t, std::size_t) { return Status(); });
}

Status GradientReducer::start() {
  if (world_.size() == 1) return {};
  if (trial_.current().kind == Overlap::Kind::kInline) {
    for (const auto& bucket : buckets_) STORMO_RETURN_IF_ERROR(bucket->reduce(weight_));
    return {};
  }
  while (started_ < buckets_.size()) start_next_bucket();
  return {};
}

Status GradientReducer::finish(const Averaged& averaged) {
  // the average over one rank, bit for bit
  if (world_.size() == 1) return averaged(0, parameters_.size());
  if (trial_.current().kind == Overlap::Kind::kInline) {
    STORMO_RETURN_IF_ERROR(averaged(0, parameters_.size()));
    return next_pass();
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    STORMO_RETURN_IF_ERROR(buckets_[b]->finish());
    STORMO_RETURN_IF_ERROR(tell(b, averaged));
  }
  return next_pass();
}

// Neighbours together.
Status GradientReducer::tell(std::size_t bucket, const Averaged& averaged) const {
  const std::vector<std::size_t>& members = members_[bucket];
  for (std::size_t i = 0, end = 0; i < members.size(); i = end) {
    for (end = i + 1; end < members.size() && members[end] == members[end - 1] + 1;) ++end;
    STORMO_RETURN_IF_ERROR(averaged(members[i], members[end - 1] + 1));
  }
  return {};
}

Status GradientReducer::next_pass() {
  STORMO_ASSIGN_OR_RETURN(const bool changed, trial_.step_done(world_));
  if (!arrival_known_) STORMO_RETURN_IF_ERROR(follow_arrival());
  if (changed) build_buckets();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_ready_[i]) ++missing_[bucket_of_[i]];
  }
  is_ready_.assign(parameters_.size(), false);
  started_ = 0;
  held_ = false;
  total_asked_ = false;
  return {};
}

// Buckets fill in the order in which rank 0's gradients came; those that did not come go last.
Status GradientReducer::follow_arrival() {
  arrival_known_ = true;
  std::vector<bool> came(parameters_.size(), false);
  for (const std::int64_t i : arrival_) came[static_cast<std::size_t>(i)] = true;
  for (const std::size_t i : order_) {
    if (!came[i]) arrival_.push_back(static_cast<std::int64_t>(i));
  }
  STORMO_RETURN_IF_ERROR(world_.broadcast(comm::buffer_of(std::span(arrival_)), 0));
  order_.assign(arrival_.begin(), arrival_.end());
  if (trial_.current().kind == Overlap::Kind::kBuckets) build_buckets();
  return {};
}

void GradientReducer::abandon() {
  for (std::size_t b = 0; b < started_; ++b) buckets_[b]->abandon();
  if (total_asked_) static_cast<void>(total_known_.wait());
  total_asked_ = false;
  build_buckets();
  started_ = 0;
  held_ = false;
}

std::string GradientReducer::describe() const {
  const std::string in = travels_as_ ? std::string(" in ") + torch::toString(*travels_as_) : "";
  return "gradients are reduced " + trial_.describe() + in;
}

}  // namespace stormo::train
