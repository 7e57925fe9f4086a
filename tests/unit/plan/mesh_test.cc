#include <stormo/plan/mesh.h>

#include <gtest/gtest.h>

#include <stormo/plan/mesh_text.h>

namespace stormo::plan {
namespace {

const Mesh kGrid{{{"pp", 2}, {"dp", 3}, {"tp", 4}}};

TEST(Mesh, NoAxesMeanOneRank) {
  EXPECT_EQ(Mesh{}.size(), 1);
  EXPECT_EQ(Mesh{}.coordinates(0), std::vector<int>{});
  EXPECT_EQ(Mesh{}.find("dp"), -1);
}

TEST(Mesh, TheLastAxisVariesFastest) {
  Rank rank = 0;
  for (int pp = 0; pp < 2; ++pp) {
    for (int dp = 0; dp < 3; ++dp) {
      for (int tp = 0; tp < 4; ++tp, ++rank) {
        EXPECT_EQ(kGrid.coordinates(rank), (std::vector<int>{pp, dp, tp}));
      }
    }
  }
  EXPECT_EQ(kGrid.size(), rank);
}

TEST(Mesh, AGroupSharesAllOtherCoordinates) {
  EXPECT_EQ(kGrid.group(17, "tp"), (std::vector<Rank>{16, 17, 18, 19}));
  const std::vector<std::string> two = {"pp", "tp"};
  EXPECT_EQ(kGrid.group(17, two), (std::vector<Rank>{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(kGrid.group(17, "dp"), (std::vector<Rank>{13, 17, 21}));
  EXPECT_EQ(kGrid.group(17, "pp"), (std::vector<Rank>{5, 17}));
}

/// Of axes as in the text form of a step plan.
Result<Mesh> read(std::string_view axes) {
  TextReader in(axes);
  Mesh mesh = read_axes(in);
  if (!in.ok()) return in.status();
  return mesh;
}

TEST(Mesh, TextRoundTrips) {
  EXPECT_EQ(to_text(kGrid), "mesh v1 pp=2 dp=3 tp=4\n");
  for (const Mesh& mesh : {Mesh{}, kGrid, Mesh{{{"odd \"name\"\n", 7}}}}) {
    std::string text;
    append_axes(text, mesh);
    const auto parsed = read(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, mesh);
    EXPECT_EQ(hash(*parsed), hash(mesh));
  }
  EXPECT_NE(hash(kGrid), hash(Mesh{}));
}

TEST(Mesh, AxesThatMakeNoMeshAreRefused) {
  EXPECT_EQ(read("dp=2 dp=2").status().message(), "1:6: axis 'dp' is there twice");
  EXPECT_EQ(read("dp=0").status().message(), "1:4: the axis' size must be in 1..65536");
  EXPECT_EQ(read("dp=60000 tp=60000").status().message(),
            "1:13: the mesh has more than 65536 ranks");
}

}  // namespace
}  // namespace stormo::plan
