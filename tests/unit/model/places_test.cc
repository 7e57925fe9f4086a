// Maps of which ranks have parts: layers and models compute on a grid, and on shares of rows, what
// one rank computes, forward and backward.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <stormo/model/cnn.h>
#include <stormo/model/locally_connected.h>
#include <stormo/model/resnet20.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/grid.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::model {
namespace {

using plan::Window;
using tensor::Grid;
using tensor::Line;
using torch::Tensor;

/// Calls `body` for each rank of a grid, in a thread of its own.
void on_grid(int rows, int columns, const std::function<void(const Grid&)>& body) {
  auto all = comm::make_hosts({rows * columns});
  std::vector<std::vector<std::unique_ptr<comm::Communicator>>> along_rows, along_columns;
  for (int j = 0; j < columns; ++j) along_rows.push_back(comm::make_hosts({rows}));
  for (int i = 0; i < rows; ++i) along_columns.push_back(comm::make_hosts({columns}));
  std::vector<std::thread> threads;
  for (int r = 0; r < rows * columns; ++r) {
    const auto i = static_cast<std::size_t>(r / columns), j = static_cast<std::size_t>(r % columns);
    comm::Communicator& world = *all[static_cast<std::size_t>(r)];
    const Grid grid(rows > 1 ? Line(*along_rows[j][i]) : Line(),
                    columns > 1 ? Line(*along_columns[i][j]) : Line(), world);
    threads.emplace_back([&body, &world, grid] {
      try {
        body(grid);
        throw_if_error(world.barrier());
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
        world.fail(Status(Code::kException, e.what()));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

/// Some places of a map, as those of one rank.
Tensor part_of(const Tensor& map, const Line& rows, const Line& columns) {
  const plan::Share r = rows.share(map.size(2)), c = columns.share(map.size(3));
  return map.narrow(2, r.begin, r.size()).narrow(3, c.begin, c.size());
}

struct Layer {
  Window window;
  int rows = 1, columns = 1;  // of ranks
};
std::ostream& operator<<(std::ostream& out, const Layer& l) {
  return out << l.window.height << " x " << l.window.width << ", kernel " << l.window.kernel
             << ", stride " << l.window.stride << ", padding " << l.window.padding << ", " << l.rows
             << " x " << l.columns << " ranks";
}

void expect_convolution_of_one_rank(const Layer& l) {
  const Window& w = l.window;
  torch::manual_seed(w.height * 31 + w.kernel);
  const auto real = torch::TensorOptions(torch::kFloat64);
  const Tensor map = torch::randn({2, w.channels, w.height, w.width}, real).requires_grad_();
  const Tensor kernel = torch::randn({4, w.channels, w.kernel, w.kernel}, real);
  const Tensor expected = at::conv2d(map, kernel, {}, w.stride, w.padding);
  const Tensor gradient = torch::randn_like(expected);
  expected.backward(gradient);
  on_grid(l.rows, l.columns, [&](const Grid& grid) {
    const auto mine = [&](const Tensor& t) { return part_of(t, grid.rows(), grid.columns()); };
    const Tensor x = mine(map.detach()).clone().requires_grad_();
    const Tensor y =
        at::conv2d(halo_exchange(x, w, grid.rows(), grid.columns()), kernel, {}, w.stride);
    ASSERT_EQ(y.sizes(), mine(expected).sizes()) << l;
    EXPECT_TRUE(y.allclose(mine(expected.detach()), 1e-12, 1e-12)) << l;
    y.backward(mine(gradient));
    EXPECT_TRUE(x.grad().allclose(mine(map.grad()), 1e-12, 1e-12)) << l;
  });
}

// Also parts of unequal size, windows wider than a part, and places that no window reads.
TEST(ReadPlaces, AConvolutionOfAGridIsThatOfOneRank) {
  for (const auto& [rows, columns] : {std::pair(1, 2), {2, 1}, {2, 2}, {1, 4}, {3, 2}}) {
    for (const Window& window :
         {Window{3, 12, 16, 3, 1, 1}, Window{3, 12, 16, 5, 1, 2}, Window{3, 12, 16, 3, 2, 1},
          Window{3, 11, 13, 3, 2, 1}, Window{3, 11, 13, 5, 1, 0}, Window{3, 12, 9, 2, 2, 0},
          Window{3, 13, 14, 2, 2, 0}, Window{3, 12, 12, 1, 2, 0}, Window{3, 14, 14, 2, 3, 0},
          Window{3, 9, 11, 7, 1, 3}, Window{3, 13, 13, 1, 3, 0}}) {
      expect_convolution_of_one_rank({window, rows, columns});
    }
  }
}

TEST(ReadPlaces, RefusesWhatIsNoPartOfTheMap) {
  const Line alone;
  for (const Tensor& x :
       {torch::zeros({2, 3, 8, 9}), torch::zeros({2, 4, 8, 8}), torch::zeros({8})}) {
    EXPECT_THROW(halo_exchange(x, {3, 8, 8, 3, 1, 1}, alone, alone), Error);
  }
  try {
    Grid::alone(2, 9).take(torch::zeros({2, 3, 8, 8}));
    ADD_FAILURE() << "nine parts of eight columns";
  } catch (const Error& e) {
    EXPECT_NE(e.status().message().find("no places for each of 2 x 9 ranks"), std::string::npos);
  }
}

/// Output, gradients of parameters, and buffers.
using Outcome = std::vector<Tensor>;

Outcome outcome_of(Chain& model, const Tensor& y, const Tensor& gradient) {
  y.backward(gradient);
  Outcome out = {y.detach()};
  for (const Tensor& p : model.parameters()) {
    out.push_back(p.grad().defined() ? p.grad() : torch::zeros_like(p));
  }
  for (const Tensor& b : model.buffers()) out.push_back(b);
  return out;
}

void expect_near(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sizes(), b[i].sizes()) << what << ": " << i;
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), 1e-11) << what << ": " << i;
  }
}

struct Case {
  std::string name;
  std::function<std::shared_ptr<Chain>()> build;
  std::vector<std::int64_t> images;  // sizes
};

std::shared_ptr<Chain> built(const Case& c) {
  torch::manual_seed(5);
  auto model = c.build();
  model->to(torch::kFloat64);
  return model;
}

// The mean of the ranks' gradients is the gradient of one rank.
TEST(Places, AModelOfAGridIsThatOfOneRank) {
  const std::vector<Case> cases = {
      {"cnn",
       [] {
         return std::make_shared<Cnn>(CnnOptions{3, 5, 12, 10});
       },
       {3, 1, 28, 28}},
      {"cnn of odd sizes",
       [] {
         return std::make_shared<Cnn>(CnnOptions{3, 5, 12, 10, 2, 35, 33});
       },
       {3, 2, 35, 33}},
      {"resnet20",
       [] {
         return std::make_shared<ResNet20>(ResNet20Options{2, 16, 16, 4});
       },
       {3, 2, 16, 16}},
      {"resnet20 of odd sizes",
       [] {
         return std::make_shared<ResNet20>(ResNet20Options{2, 17, 19, 4});
       },
       {3, 2, 17, 19}}};
  for (const Case& c : cases) {
    const auto one = built(c);
    torch::manual_seed(6);
    const Tensor images = torch::randn(c.images, torch::kFloat64);
    const Tensor y = one->forward(images);
    const Tensor gradient = torch::randn_like(y);
    const Outcome expected = outcome_of(*one, y, gradient);
    for (const auto& [rows, columns] : {std::pair(1, 2), {2, 1}, {2, 2}, {1, 4}}) {
      std::vector<std::shared_ptr<Chain>> models;
      for (int r = 0; r < rows * columns; ++r) models.push_back(built(c));
      on_grid(rows, columns, [&](const Grid& grid) {
        Chain& model = *models[static_cast<std::size_t>(grid.all()->rank())];
        model.compute_places_with(&grid);
        const Outcome mine = outcome_of(model, model.forward(grid.take(images)), gradient);
        for (std::size_t i = 1; i <= model.parameters().size(); ++i) {
          throw_if_error(grid.all()->all_reduce(tensor::buffer_of(mine[i]), comm::ReduceOp::kSum));
          mine[i].div_(grid.size());
        }
        expect_near(mine, expected, c.name);
      });
    }
  }
}

// Each rank has the gradients of its own weights, and nothing of weights is added up.
TEST(LocallyConnected, RanksWithSharesOfTheRowsAreOneRank) {
  for (const auto& [height, width] : {std::pair(28, 28), {17, 21}}) {
    const Case c{"local",
                 [h = height, w = width] {
                   return std::make_shared<LocalNet>(
                       LocalNetOptions{.channels = 2, .height = h, .width = w, .classes = 5});
                 },
                 {3, 2, height, width}};
    const auto one = built(c);
    torch::manual_seed(6);
    const Tensor images = torch::randn(c.images, torch::kFloat64);
    const Tensor y = one->forward(images);
    const Tensor gradient = torch::randn_like(y);
    const Outcome expected = outcome_of(*one, y, gradient);
    std::vector<plan::Split> splits;
    const auto shape = one->split_shape();
    for (const plan::ParameterShape* p : plan::flatten(shape)) splits.push_back(p->split);
    for (const int ranks : {2, 3, 4}) {
      std::vector<std::shared_ptr<Chain>> models;
      for (int r = 0; r < ranks; ++r) models.push_back(built(c));
      on_grid(ranks, 1, [&](const Grid& grid) {
        const tensor::TensorParallelGroup group(*grid.all());
        Chain& model = *models[static_cast<std::size_t>(grid.all()->rank())];
        parallelize(model, group);
        const Outcome mine = outcome_of(model, model.forward(images), gradient);
        Outcome own = {expected[0]};
        for (std::size_t i = 0; i < splits.size(); ++i) {
          own.push_back(splits[i].units == 0
                            ? expected[i + 1]
                            : tensor::slice(expected[i + 1], splits[i], group.part()));
        }
        expect_near(mine, own, "local");
        model.compute_with(nullptr);
      });
    }
  }
}

// An independent definition: a convolution for each place.
TEST(LocallyConnected, EachPlaceIsAConvolutionOfItsOwn) {
  torch::manual_seed(1);
  const Window window{2, 7, 9, 3, 2, 1};
  LocallyConnected2d layer(window, 4, LocallyConnected2d::Input::kWhole);
  const Tensor x = torch::randn({3, 2, 7, 9});
  const Tensor y = layer.forward(x);
  ASSERT_EQ(y.sizes(), (torch::IntArrayRef{3, 4, 4, 5}));
  const Tensor weight = layer.parameters()[0], bias = layer.parameters()[1];
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) {
      const Tensor kernel = weight[i][j].t().reshape({4, 2, 3, 3});
      const Tensor all = at::conv2d(x, kernel, bias[i][j], 2, 1);
      EXPECT_TRUE(torch::relu(all).select(2, i).select(2, j).allclose(y.select(2, i).select(2, j),
                                                                      1e-4, 1e-5));
    }
  }
  EXPECT_THROW(LocallyConnected2d({1, 2, 2, 5}, 3, LocallyConnected2d::Input::kWhole), Error);
}

}  // namespace
}  // namespace stormo::model
