#include <stormo/train/wrap/wrapped_parameters.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace stormo::train {
namespace {

/// Who has a parameter, in this process: replicas may be threads.
struct Owners {
  std::mutex mutex;
  std::multimap<const c10::TensorImpl*, const WrappedParameters*> of;
  std::atomic<bool> some_are_shared = false;

  void change(const WrappedParameters* owner, const std::vector<NamedParameter>& parameters) {
    const std::lock_guard lock(mutex);
    std::erase_if(of, [owner](const auto& entry) { return entry.second == owner; });
    for (const NamedParameter& p : parameters) of.emplace(p.tensor.unsafeGetTensorImpl(), owner);
    const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
    some_are_shared = std::adjacent_find(of.begin(), of.end(), same) != of.end();
  }
};

Owners& owners() {
  static Owners* const all = new Owners;  // wrappers may go when static objects have gone
  return *all;
}

}  // namespace

WrappedParameters::WrappedParameters(std::shared_ptr<torch::nn::Module> module)
    : module_(std::move(module)) {
  renew();
}

WrappedParameters::~WrappedParameters() { owners().change(this, {}); }

std::vector<torch::Tensor> WrappedParameters::tensors() const {
  std::vector<torch::Tensor> out;
  for (const NamedParameter& p : list_) out.push_back(p.tensor);
  return out;
}

bool WrappedParameters::changed() const {
  const std::vector<torch::Tensor> now = module_->parameters();
  if (now.size() != seen_.size()) return true;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const Seen& before = seen_[i];
    if (!now[i].is_same(before.tensor)) return true;
    if (!before.listed && !now[i].requires_grad()) continue;
    if (!before.listed || now[i].scalar_type() != before.type || now[i].numel() != before.count) {
      return true;
    }
  }
  return false;
}

void WrappedParameters::renew() {
  std::map<const c10::TensorImpl*, NamedParameter> wanted;
  for (NamedParameter& p : list_) wanted.emplace(p.tensor.unsafeGetTensorImpl(), std::move(p));
  for (NamedParameter& p : trainable_parameters(*module_)) {
    const c10::TensorImpl* key = p.tensor.unsafeGetTensorImpl();
    wanted.insert_or_assign(key, std::move(p));
  }
  list_.clear();
  seen_.clear();
  std::set<const c10::TensorImpl*> listed;  // a parameter may have two names
  for (const auto& p : module_->named_parameters()) {
    const torch::Tensor& t = p.value();
    const auto found = wanted.find(t.unsafeGetTensorImpl());
    seen_.push_back({t, t.scalar_type(), t.numel(), found != wanted.end()});
    if (found == wanted.end() || !listed.insert(found->first).second) continue;
    list_.push_back({p.key(), t, found->second.sparse});
  }
  owners().change(this, list_);
}

Status WrappedParameters::check_alone() const {
  if (!owners().some_are_shared) return {};
  const std::lock_guard lock(owners().mutex);
  for (const NamedParameter& p : list_) {
    if (owners().of.count(p.tensor.unsafeGetTensorImpl()) == 1) continue;
    return invalid_argument("parameter '" + p.name +
                            "' is wrapped twice, so its gradient would be averaged twice; destroy "
                            "the other DistributedDataParallel first");
  }
  return {};
}

bool WrappedParameters::is_wrapped(const torch::Tensor& parameter) {
  const std::lock_guard lock(owners().mutex);
  return owners().of.contains(parameter.unsafeGetTensorImpl());
}

}  // namespace stormo::train
