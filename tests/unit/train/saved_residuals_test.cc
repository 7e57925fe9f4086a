// Who goes on with what codecs have lost when a run is resumed on other ranks.
#include <stormo/train/checkpoint/saved_residuals.h>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

namespace stormo::train {
namespace {

/// What three ranks have saved: what rank r has lost is 10^r, and the rest all have alike.
const std::map<std::string, double> kSaved = {
    {"layer.weight", 9},
    {"optimizer.momentum.layer.weight", 9},
    {"optimizer.residual.rank0.6.layer.weight", 1},
    {"optimizer.residual.rank0.6.layer.weight.sums", 5},
    {"optimizer.residual.rank0.right.6.layer.weight", 7},
    {"optimizer.residual.rank1.6.layer.weight", 10},
    {"optimizer.residual.rank1.6.layer.weight.sums", 5},
    {"optimizer.residual.rank1.right.6.layer.weight", 7},
    {"optimizer.residual.rank2.6.layer.weight", 100},
    {"optimizer.residual.rank2.6.layer.weight.sums", 5},
    {"optimizer.residual.rank2.right.6.layer.weight", 7},
};

std::map<std::string, double> kept_by(const ResidualReader& reader) {
  std::vector<std::string> names;
  for (const auto& saved : kSaved) names.push_back(saved.first);
  const auto read = [](const std::string& name) -> Result<torch::Tensor> {
    return torch::tensor({kSaved.at(name)});
  };
  const TensorMap kept = residuals_for(reader, names, read).take_or_throw();
  std::map<std::string, double> out;
  for (const auto& [key, values] : kept) out[key] = values.item<double>();
  return out;
}

TEST(SavedResiduals, OnAsManyRanksEachGoesOnWithItsOwn) {
  for (const bool has_parts : {false, true}) {
    double lost = 1;
    for (Rank rank = 0; rank < 3; ++rank, lost *= 10) {
      const auto kept = kept_by({.rank = rank, .ranks = 3, .has_parts = has_parts});
      EXPECT_EQ(kept, (std::map<std::string, double>{{"6.layer.weight", lost},
                                                     {"6.layer.weight.sums", 5},
                                                     {"right.6.layer.weight", 7}}));
    }
  }
}

TEST(SavedResiduals, OnOtherRanksTheSumOfWhatWasLostIsTheSame) {
  for (const int ranks : {1, 2, 4, 5}) {
    double lost = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      auto kept = kept_by({.rank = rank, .ranks = ranks});
      EXPECT_EQ(kept.at("right.6.layer.weight"), 7) << ranks;
      EXPECT_EQ(kept.at("6.layer.weight.sums"), 5) << ranks;
      if (kept.contains("6.layer.weight")) lost += kept.at("6.layer.weight");
    }
    EXPECT_EQ(lost, 111) << ranks;
  }
  EXPECT_EQ(kept_by({.rank = 0, .ranks = 2}).at("6.layer.weight"), 101);
  EXPECT_EQ(kept_by({.rank = 1, .ranks = 2}).at("6.layer.weight"), 10);
}

TEST(SavedResiduals, AnErrorIsTold) {
  const auto fails = [](const std::string& name) -> Result<torch::Tensor> {
    return invalid_argument("no " + name);
  };
  const Status told =
      residuals_for({}, {"optimizer.residual.rank0.6.layer.weight"}, fails).status();
  EXPECT_EQ(told.message(), "no optimizer.residual.rank0.6.layer.weight");
  EXPECT_TRUE(residuals_for({}, {"layer.weight", "optimizer.residual.rankx.6.y"}, fails).ok());
}

}  // namespace
}  // namespace stormo::train
