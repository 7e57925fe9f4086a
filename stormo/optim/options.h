#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace stormo::optim {

/// An update rule with its constants. g is the gradient, w the weights, lr the learning rate.
struct Options {
  enum class Kind {
    kSgd,      ///< as torch::optim::SGD, bit for bit
    kAdamW,    ///< Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019
    kAdam,     ///< Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015
    kAdagrad,  ///< Duchi et al., "Adaptive subgradient methods", JMLR 12, 2011
    kRmsProp,  ///< Tieleman and Hinton, 2012; as torch::optim::RMSprop, not centered
    kLion,     ///< Chen et al., "Symbolic discovery of optimization algorithms", 2023
    kLars,     ///< You et al., "Large batch training of convolutional networks", 2017
    kLamb,     ///< You et al., "Large batch optimization for deep learning", ICLR 2020
    /// Liu and Nocedal, "On the limited memory BFGS method", 1989. No rule for ranges: see Lbfgs.
    kLbfgs,
    /// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; as
    /// torch.optim.Muon. Of whole matrices, no rule for ranges; beside it stands kAdamW:
    /// rules_of().
    kMuon,
  } kind = Kind::kSgd;
  double lr = 0.1;
  double momentum = 0;      ///< kSgd, kRmsProp, kLars, kMuon
  bool nesterov = false;    ///< kSgd, kMuon
  double weight_decay = 0;  ///< decoupled in kAdamW, kLion, kLamb, kMuon; else an L2 penalty
  double beta1 = 0.9;       ///< kAdam, kAdamW, kLion, kLamb: decay of the mean of gradients
  double beta2 = 0.999;     ///< same: decay of the mean of squares (kLion: of gradients)
  double epsilon = 1e-8;    ///< added to the denominator; all but kSgd, kLion, kLars
  double alpha = 0.99;      ///< kRmsProp: decay of the mean of squares
  double trust = 0.001;     ///< kLars: trust coefficient
  int history = 10;         ///< kLbfgs: steps of which the curvature is estimated
  /// kMuon: factor of the learning rate for a matrix of m rows and n columns.
  enum class AdjustLr {
    kOriginal,       ///< sqrt(max(1, m / n))
    kMatchRmsAdamW,  ///< 0.2 sqrt(max(m, n)): a step is about as large as one of kAdamW
  } adjust_lr = AdjustLr::kMatchRmsAdamW;
};

/// The rules with which an optimizer of these options updates parameters. One, but kMuon has two:
/// itself for matrices of hidden layers, and then kAdamW for all else.
std::vector<Options> rules_of(const Options& options);

inline constexpr int kMaxSlots = 2;
/// Of Options::history.
inline constexpr int kMaxHistory = 100;

/// Names of the state arrays (slots) of the rule, with one number per weight; named as in
/// torch::optim if it has them. At most kMaxSlots. Initially zero.
std::vector<std::string_view> slot_names(const Options& options);

/// The most slots that one of rules_of() has.
std::size_t num_slots(const Options& options);

/// Whether the rule updates ranges of weights by themselves, with update(). kLbfgs needs vectors of
/// all weights, kMuon whole matrices.
bool updates_ranges(Options::Kind kind);

/// Whether the rule depends on the number of updates of a weight.
bool counts_steps(Options::Kind kind);

/// Whether an update with a gradient of zero changes nothing. Then rows of a table without a
/// gradient can be skipped.
bool leaves_rest_alone(const Options& options);

/// Whether the rule scales its update by a ratio of norms of the whole parameter. Then prepare()
/// must be called before update().
bool needs_norms(Options::Kind kind);

}  // namespace stormo::optim
