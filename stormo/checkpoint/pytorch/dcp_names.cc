#include <stormo/checkpoint/pytorch/dcp_names.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/checkpoint/pytorch/pickle.h>

namespace stormo::checkpoint {
namespace {

using Kind = PickleValue::Kind;
using ReadObject = std::function<Result<std::string>(const DcpEntry&)>;

constexpr std::string_view kGroups = "param_groups", kState = "state.", kDdpPrefix = "module.";

std::string in_quotes(std::string_view name) { return "'" + printable_line(name) + "'"; }

/// What stands before "param_groups" in a name, "" or "optim."; empty when the name has none.
std::optional<std::string> optimizer_prefix(const std::string& name) {
  for (std::size_t at = 0; (at = name.find(kGroups, at)) != std::string::npos; ++at) {
    const std::size_t end = at + kGroups.size();
    const bool begins = at == 0 || name[at - 1] == '.';
    const bool ends = end == name.size() || name[end] == '.';
    if (begins && ends) return name.substr(0, at);
  }
  return std::nullopt;
}

/// Of the nested state: the keys that led to the dict in which an entry was.
std::string dict_of(const DcpEntry& entry) {
  return fmt::format("{}", fmt::join(entry.path.begin(), entry.path.end() - 1, "."));
}

bool is_model(std::string_view dict) { return dict == "model" || dict.ends_with(".model"); }

std::optional<std::size_t> whole_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool all = error == std::errc() && end == text.data() + text.size();
  return all ? std::optional(number) : std::nullopt;
}

class NameFinder {
 public:
  NameFinder(const std::vector<DcpEntry>& entries, const ReadObject& read_object)
      : entries_(entries), read_object_(read_object) {}

  Result<DcpNames> find() {
    STORMO_RETURN_IF_ERROR(find_optimizer());
    STORMO_RETURN_IF_ERROR(find_model());
    STORMO_RETURN_IF_ERROR(name_state());
    return std::move(names_);
  }

 private:
  Status find_optimizer() {
    std::set<std::string> prefixes;
    for (const DcpEntry& e : entries_) {
      if (const auto prefix = optimizer_prefix(e.name)) prefixes.insert(*prefix);
    }
    if (prefixes.size() > 1) {
      return invalid_argument(fmt::format(
          "it holds the states of {} optimizers (before '{}': '{}'); a checkpoint has one: save a "
          "folder with one",
          prefixes.size(), kGroups,
          printable_line(fmt::format("{}", fmt::join(prefixes, "', '")))));
    }
    if (!prefixes.empty()) optimizer_ = *prefixes.begin();
    return {};
  }

  bool is_of_groups(const DcpEntry& e) const {
    return optimizer_ && e.name.starts_with(*optimizer_ + std::string(kGroups));
  }
  bool is_state(const DcpEntry& e) const {
    return optimizer_ && e.name.starts_with(*optimizer_ + std::string(kState));
  }

  Status find_model() {
    std::map<std::string, std::vector<const DcpEntry*>> dicts;
    for (const DcpEntry& e : entries_) {
      if (is_of_groups(e) || is_state(e)) continue;
      if (e.is_tensor()) dicts[dict_of(e)].push_back(&e);
    }
    if (dicts.empty()) return invalid_argument("it holds no tensors of a model");
    auto chosen = dicts.begin();
    const auto named = [](const auto& d) { return is_model(d.first); };
    if (dicts.size() > 1) {
      const auto models = std::count_if(dicts.begin(), dicts.end(), named);
      if (models == 1) {
        chosen = std::find_if(dicts.begin(), dicts.end(), named);
      } else if (models > 1 || !dicts.begin()->first.empty()) {
        return several_models(dicts);
      }
    }
    const auto& tensors = chosen->second;
    const bool wrapped = std::all_of(tensors.begin(), tensors.end(), [](const DcpEntry* e) {
      return e->path.back().starts_with(kDdpPrefix);
    });
    for (const DcpEntry* e : tensors) {
      const std::string name = e->path.back().substr(wrapped ? kDdpPrefix.size() : 0);
      if (!names_.model.emplace(name, e).second) {
        return invalid_argument(in_quotes(name) + " is in it twice");
      }
      order_.push_back(name);
    }
    for (const DcpEntry& e : entries_) {
      const bool taken =
          is_of_groups(e) || is_state(e) || (e.is_tensor() && dict_of(e) == chosen->first);
      if (!taken) names_.left_out.push_back(e.name);
    }
    return {};
  }

  template <class Dicts>
  static Status several_models(const Dicts& dicts) {
    std::vector<std::string> names;
    for (const auto& [name, tensors] : dicts) names.push_back(in_quotes(name));
    return invalid_argument(fmt::format(
        "it holds tensors under {}, and which are the model's cannot be told: save those as "
        "{{\"model\": ...}}",
        fmt::join(names, ", ")));
  }

  Status name_state() {
    for (const DcpEntry& e : entries_) {
      if (!is_state(e)) continue;
      const std::string rest = e.name.substr(optimizer_->size() + kState.size());
      const std::size_t dot = rest.rfind('.');
      if (!e.is_tensor() || dot == std::string::npos) {
        STORMO_RETURN_IF_ERROR(leave_out_object(e));
        continue;
      }
      const std::string slot = rest.substr(dot + 1);
      STORMO_ASSIGN_OR_RETURN(const std::string parameter, parameter_of(e, rest.substr(0, dot)));
      const DcpEntry& of = *names_.model.at(parameter);
      const bool steps = slot == "step";
      if (steps && !counts_for(e)) continue;
      if (!steps && e.shape != of.shape) {
        return invalid_argument(fmt::format("{} is [{}], but {} is [{}]: {}", in_quotes(e.name),
                                            fmt::join(e.shape, ", "), in_quotes(parameter),
                                            fmt::join(of.shape, ", "), kSaveNames));
      }
      names_.optimizer.push_back({"optimizer." + slot + "." + parameter, &e, steps});
    }
    return {};
  }

  /// Rules that do not depend on the number of updates count them in PyTorch, not here.
  bool counts_for(const DcpEntry& step) {
    if (state_names_.empty()) {
      for (const DcpEntry& e : entries_) state_names_.insert(e.name);
    }
    const std::string of = step.name.substr(0, step.name.size() - std::string_view("step").size());
    return state_names_.contains(of + "exp_avg_sq");
  }

  /// SGD has a momentum_buffer of None before its first update. Other objects are no tensors.
  Status leave_out_object(const DcpEntry& e) {
    if (!e.is_tensor()) {
      STORMO_ASSIGN_OR_RETURN(const std::string text, read_object_(e));
      const Result<Pickle> pickle = Pickle::parse(text);
      if (pickle.ok() && pickle->root().kind == Kind::kNone) return {};
      if (e.name.ends_with(".step")) {
        return invalid_argument(in_quotes(e.name) +
                                " is no tensor: save it with PyTorch 2.0 or newer");
      }
    }
    names_.left_out.push_back(e.name);
    return {};
  }

  Result<std::string> parameter_of(const DcpEntry& e, std::string key) {
    if (names_.model.contains(key)) return key;
    if (key.starts_with(kDdpPrefix) && names_.model.contains(key.substr(kDdpPrefix.size()))) {
      return key.substr(kDdpPrefix.size());
    }
    const auto number = whole_number(key);
    if (!number) {
      return invalid_argument(in_quotes(e.name) +
                              " is of a parameter that the model does not have");
    }
    if (!numbered_) {
      STORMO_ASSIGN_OR_RETURN(numbered_, numbered_parameters());
    }
    if (*number < numbered_->size()) return (*numbered_)[*number];
    return invalid_argument(in_quotes(e.name) + " is of a parameter that no group has");
  }

  /// The lists that the groups have under `key`, one after the other.
  Result<std::vector<std::string>> lists_of_groups(const std::string& key) {
    std::vector<std::string> out;
    for (std::size_t group = 0;; ++group) {
      const std::string name = fmt::format("{}{}.{}.{}", *optimizer_, kGroups, group, key);
      const auto found = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const DcpEntry& e) { return e.name == name; });
      if (found == entries_.end() || found->is_tensor()) break;
      STORMO_ASSIGN_OR_RETURN(const std::string text, read_object_(*found));
      const Result<Pickle> pickle = Pickle::parse(text);
      if (!pickle.ok()) return pickle.status().within(in_quotes(name));
      if (pickle->root().kind != Kind::kList)
        return invalid_argument(in_quotes(name) + " is no list");
      for (const std::uint32_t i : pickle->root().items) {
        const PickleValue& item = pickle->at(i);
        out.push_back(item.kind == Kind::kInteger ? std::to_string(item.integer)
                                                  : std::string(item.text));
      }
      groups_ = group + 1;
    }
    return out;
  }

  /// Optimizer.state_dict() numbers parameters in the order of its groups.
  Result<std::vector<std::string>> numbered_parameters() {
    STORMO_ASSIGN_OR_RETURN(std::vector<std::string> names, lists_of_groups("param_names"));
    if (!names.empty()) {
      for (std::string& name : names) {
        if (!names_.model.contains(name) && name.starts_with(kDdpPrefix)) {
          name.erase(0, kDdpPrefix.size());
        }
        if (names_.model.contains(name)) continue;
        return invalid_argument("its optimizer has a parameter " + in_quotes(name) +
                                ", which the model does not have");
      }
      return names;
    }
    STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> numbers, lists_of_groups("params"));
    for (const std::string& name : order_) {
      if (order_.size() == numbers.size() || !is_running_statistic(name)) names.push_back(name);
    }
    if (groups_ == 1 && names.size() == numbers.size()) return names;
    return invalid_argument(fmt::format(
        "its optimizer's state numbers {} parameters in {} groups, and the model has {} tensors: "
        "which is which cannot be told; {}",
        numbers.size(), groups_, names.size(), kSaveNames));
  }

  static constexpr std::string_view kSaveNames =
      "save what torch.distributed.checkpoint.state_dict.get_state_dict() returns, which has the "
      "names of parameters";

  const std::vector<DcpEntry>& entries_;
  const ReadObject& read_object_;
  std::optional<std::string> optimizer_;  ///< before "state." and "param_groups."; none: no state
  std::vector<std::string> order_;        ///< names of the model in its order
  std::optional<std::vector<std::string>> numbered_;
  std::set<std::string> state_names_;
  std::size_t groups_ = 0;
  DcpNames names_;
};

}  // namespace

bool is_running_statistic(std::string_view name) {
  constexpr std::array<std::string_view, 3> kStatistics = {"running_mean", "running_var",
                                                           "num_batches_tracked"};
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::find(kStatistics.begin(), kStatistics.end(), last) != kStatistics.end();
}

Result<DcpNames> names_of_dcp(const std::vector<DcpEntry>& entries, const ReadObject& read_object) {
  return NameFinder(entries, read_object).find();
}

}  // namespace stormo::checkpoint
