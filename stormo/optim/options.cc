#include <stormo/optim/options.h>

#include <algorithm>

namespace stormo::optim {

std::vector<Options> rules_of(const Options& options) {
  std::vector<Options> rules = {options};
  if (options.kind != Options::Kind::kMuon) return rules;
  rules.push_back(options);
  rules.back().kind = Options::Kind::kAdamW;
  return rules;
}

std::vector<std::string_view> slot_names(const Options& options) {
  switch (options.kind) {
    case Options::Kind::kSgd:
      return options.momentum != 0 ? std::vector<std::string_view>{"momentum_buffer"}
                                   : std::vector<std::string_view>{};
    case Options::Kind::kAdamW:
    case Options::Kind::kAdam:
    case Options::Kind::kLamb: return {"exp_avg", "exp_avg_sq"};
    case Options::Kind::kAdagrad: return {"sum"};
    case Options::Kind::kRmsProp:
      return options.momentum != 0 ? std::vector<std::string_view>{"square_avg", "momentum_buffer"}
                                   : std::vector<std::string_view>{"square_avg"};
    case Options::Kind::kLion: return {"exp_avg"};
    case Options::Kind::kLars:
    case Options::Kind::kMuon: return {"momentum_buffer"};
    case Options::Kind::kLbfgs: return {};
  }
  return {};
}

std::size_t num_slots(const Options& options) {
  std::size_t most = 0;
  for (const Options& rule : rules_of(options)) most = std::max(most, slot_names(rule).size());
  return most;
}

bool updates_ranges(Options::Kind kind) {
  return kind != Options::Kind::kLbfgs && kind != Options::Kind::kMuon;
}

bool counts_steps(Options::Kind kind) {
  return kind == Options::Kind::kAdam || kind == Options::Kind::kAdamW ||
         kind == Options::Kind::kLamb;
}

bool leaves_rest_alone(const Options& options) {
  const bool keeps_moving = options.kind == Options::Kind::kSgd && options.momentum != 0;
  return (options.kind == Options::Kind::kSgd || options.kind == Options::Kind::kAdagrad) &&
         !keeps_moving && options.weight_decay == 0;
}

bool needs_norms(Options::Kind kind) {
  return kind == Options::Kind::kLars || kind == Options::Kind::kLamb;
}

}  // namespace stormo::optim
