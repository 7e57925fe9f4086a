// `stormo plan`: lists, prints, verifies, prices and simulates plans without starting anything.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include <cli/commands.h>
#include <cli/number_check.h>
#include <cli/plan/options.h>
#include <cli/plan/search.h>
#include <cli/recipe_file.h>

namespace stormo::cli {
namespace {

using PlanAction = Status (*)(const PlanOptions&);

/// A plan that fails is the run's failure; everything else is what the user asked for.
int exit_code_of_plan(const Status& st) {
  if (st.ok()) return kExitOk;
  return st.code() == Code::kBadPlan ? kExitFailed : kExitUsage;
}

CLI::App* add(CLI::App& plan, Invocation& invocation, const std::shared_ptr<PlanOptions>& o,
              const char* name, const char* description, PlanAction action, const char* examples) {
  CLI::App* command = plan.add_subcommand(name, description);
  command->footer(examples);
  command->callback([&invocation, o, action] {
    const Status st = action(*o);
    if (!st.ok()) fmt::print(stderr, "stormo plan: {}\n", st.message());
    invocation.exit_code = exit_code_of_plan(st);
  });
  return command;
}

/// From a microcontroller to more than any machine: times stay finite, and above 0.
CLI::Validator gflops_check() { return from_to(1e-3, 1e9); }

/// The plan that a command is about.
CLI::Option* add_plan(CLI::App& command, PlanOptions& o) {
  CLI::Option* name = take_recipe_names(command.add_option(
      "plan", o.plan,
      "Name from 'stormo plan list', a file, or a recipe (.toml): the plan of its step"));
  command.add_option("overrides", o.overrides, "key=value: changes to a recipe");
  command.add_option("--pieces", o.pieces, "Pieces that follow one another, where 'list' says so")
      ->capture_default_str();
  return name;
}

/// `show`: its forms, of which one at a time can be asked for, and of whose part.
void add_show_options(CLI::App& show, PlanOptions& o) {
  auto* text = show.add_flag("--text", o.text, "The exact text form, which can be read back");
  auto* dot = show.add_flag("--dot", o.dot, "A picture of the rounds for Graphviz");
  auto* svg = show.add_flag("--svg", o.svg, "A picture of the rounds for a browser");
  text->excludes(dot);
  text->excludes(svg);
  dot->excludes(svg);
  show.add_option("--rank", o.rank, "Of a step plan: only what this rank executes")
      ->check(at_least(0));
}

void add_choose_options(CLI::App& choose, PlanOptions& o) {
  choose.add_option("--selection", o.selection, "File from 'stormo tune'");
  choose.add_option("--cores", o.cores, "Cores of a host that has fewer of them than ranks")
      ->check(at_least(1));
}

/// What only the plans of training steps have.
void add_step_flags(CLI::App& cost, CLI::App& simulate, PlanOptions& o) {
  for (CLI::App* c : {&cost, &simulate}) {
    c->add_flag("--measured", o.measured,
                "Of a recipe: train a few steps here, with all ranks of a host\nat once, and take "
                "their times and memory");
    c->add_option("--samples", o.samples,
                  "Samples in a micro-batch of one rank; default: as the recipe\nsays, else 32")
        ->check(CLI::Range(1, 1'000'000));
  }
  auto* gflops =
      simulate.add_option("--gflops", o.gflops,
                          "What a rank computes a second, where nothing is measured; default: 50");
  gflops->check(gflops_check());
  auto* trace = simulate.add_option(
      "--trace", o.trace,
      "File from 'stormo train --trace', of a run of this plan: take the times\nof computations "
      "from there, and say where its idle time comes from");
  trace->excludes(gflops);
  trace->excludes(simulate.get_option("--measured"));
  simulate
      .add_option("--lost", o.lost,
                  "Ranks that are lost, as 5 or 1,6: of a step of pipelines, what it takes when\n"
                  "their peers do their work, and what other ways would take")
      ->delimiter(',')
      ->allow_extra_args(false)  // changes to a recipe may follow
      ->excludes(trace);
  simulate.add_flag("--svg", o.svg, "A picture of the step's timeline for a browser");
}

constexpr const char* kExamples =
    "  stormo plan show recipes/quickstart.toml -n 4      what a training step does\n"
    "  stormo plan search recipes/quickstart.toml -n 4    its fastest strategy\n"
    "  stormo plan simulate ring_all_reduce -n 8          one collective";
constexpr const char* kListExamples = "  stormo plan list";
constexpr const char* kShowExamples =
    "  stormo plan show ring_all_reduce -n 4\n"
    "  stormo plan show ring_all_reduce -n 4 --svg > ring.svg\n"
    "  stormo plan show recipes/gpt_3d.toml -n 4 --rank 1    what rank 1 executes in a step";
constexpr const char* kVerifyExamples =
    "  stormo plan verify --all -n 8\n"
    "  stormo plan verify recipes/gpt_3d.toml -n 4\n"
    "  stormo plan verify my_idea.plan                a file in the form of 'show --text'";
constexpr const char* kCostExamples =
    "  stormo plan cost hierarchical_all_reduce -n 8 --hosts 2 --bytes 64MiB\n"
    "  stormo plan cost recipes/gpt_3d.toml -n 8 --hosts 2 --measured";
constexpr const char* kSimulateExamples =
    "  stormo plan simulate ring_all_reduce -n 8 --hosts 2 --bytes 64MiB\n"
    "  stormo plan simulate recipes/gpt_pipeline.toml -n 2 --measured\n"
    "  stormo plan simulate recipes/gpt_pipeline.toml -n 2 --measured --svg > step.svg\n"
    "  stormo plan simulate recipes/gpt_pipeline.toml -n 2 --trace run.json\n"
    "  stormo plan simulate recipes/gpt_pipeline.toml -n 8 --lost 5    a rank is lost";
constexpr const char* kChooseExamples =
    "  stormo plan choose -n 4 --hosts 2 --bytes 64KiB\n"
    "  stormo plan choose -n 3 --cores 2 --bytes 4MiB    hosts with fewer cores than ranks";
constexpr const char* kTableExamples = "  stormo plan table --markdown    as in docs/algorithms.md";
constexpr const char* kSearchExamples =
    "  stormo plan search recipes/gpt_shakespeare.toml -n 8 --hosts 2\n"
    "  stormo plan search recipes/gpt_shakespeare.toml -n 8 --memory 2GiB --write fastest.toml\n"
    "\n"
    "Trains a few steps here, with all ranks of a host at once. Then it simulates a step of\n"
    "every synchronous strategy: replicas, shards, pipelines, tensor parallelism, and products of\n"
    "them, with every schedule, numbers of micro-batches, and recomputation. Prints the fastest, "
    "and\n"
    "why others are not among them.";

void add_search(CLI::App& plan, Invocation& invocation, const std::shared_ptr<PlanOptions>& o) {
  CLI::App* search =
      add(plan, invocation, o, "search", "The fastest strategy of a recipe that fits", search_plans,
          kSearchExamples);
  search->add_option("plan", o->plan, "A recipe (.toml)")->required();
  search->add_option("overrides", o->overrides, "key=value: changes to the recipe");
  search->add_option("-n,--ranks", o->ranks, "Number of ranks")->capture_default_str();
  search->add_option("--hosts", o->hosts, "Hosts that the ranks are spread over evenly")
      ->capture_default_str();
  search->add_option("--memory", o->memory,
                     "What a rank may use: 8GiB; default: what is available here, for each rank "
                     "of\na host");
  search->add_option("--topology", o->topology,
                     "File that describes hosts and links; default: shared memory and 1 Gbit/s");
  search
      ->add_option("--gflops", o->gflops,
                   "Measure nothing: a rank computes as much a second, and its activations\ntake "
                   "no memory")
      ->check(gflops_check());
  search->add_option("--write", o->write, "A file for the recipe with the fastest strategy");
  search->add_flag("--json", o->json, "One JSON object per line, of all ways that fit");
}

}  // namespace

void add_plan_command(CLI::App& app, Invocation& invocation) {
  const auto o = std::make_shared<PlanOptions>();
  CLI::App* plan = app.add_subcommand("plan", "Print, verify, price and simulate plans");
  plan->footer(kExamples);
  plan->require_subcommand(1);
  CLI::App* list_command =
      add(*plan, invocation, o, "list", "All algorithms", list_plans, kListExamples);
  CLI::App* show_command =
      add(*plan, invocation, o, "show", "Print a plan, round by round", show_plan, kShowExamples);
  CLI::App* verify_command =
      add(*plan, invocation, o, "verify", "Check that a plan reaches its goal safely", verify_plan,
          kVerifyExamples);
  CLI::App* cost_command = add(*plan, invocation, o, "cost", "What a collective or a step moves",
                               plan_cost, kCostExamples);
  CLI::App* simulate_command =
      add(*plan, invocation, o, "simulate", "Play a collective or a step in virtual time",
          simulate_plan, kSimulateExamples);
  CLI::App* choose_command =
      add(*plan, invocation, o, "choose", "Which algorithms would run, and why", choose_plan,
          kChooseExamples);
  CLI::App* table_command = add(*plan, invocation, o, "table", "The costs of all algorithms",
                                plan_cost_table, kTableExamples);
  table_command->add_flag("--markdown", o->markdown, "As in docs/algorithms.md");
  verify_command->add_flag("--all", o->all, "Every algorithm, for each of --ranks");

  add_search(*plan, invocation, o);
  add_show_options(*show_command, *o);
  add_choose_options(*choose_command, *o);
  for (CLI::App* c :
       {show_command, verify_command, cost_command, simulate_command, choose_command}) {
    c->add_option("-n,--ranks", o->ranks, "Number of ranks; verify --all takes 1..33")
        ->capture_default_str();
    c->add_option("--hosts", o->hosts, "Hosts that the ranks are spread over evenly")
        ->capture_default_str();
    c->add_option("--root", o->root, "Root of a broadcast, reduce, gather or scatter")
        ->capture_default_str();
  }
  for (CLI::App* c : {show_command, verify_command, cost_command, simulate_command}) {
    CLI::Option* name = add_plan(*c, *o);
    if (c != verify_command) name->required();
  }
  add_step_flags(*cost_command, *simulate_command, *o);
  for (CLI::App* c : {cost_command, simulate_command, choose_command}) {
    c->add_option("--bytes", o->bytes, "Size of the buffer: 4096, 64KiB, 1MiB")
        ->capture_default_str();
    c->add_option("--topology", o->topology,
                  "File that describes hosts and links; default: shared memory and 1 Gbit/s");
  }
  for (CLI::App* c : {list_command, show_command, verify_command, cost_command, simulate_command,
                      choose_command}) {
    c->add_flag("--json", o->json, "One JSON object per line");
  }
  for (const char* form : {"--text", "--dot", "--svg"}) {
    show_command->get_option("--json")->excludes(show_command->get_option(form));
  }
}

}  // namespace stormo::cli
