// optim.groups: parameters that are trained in another way than the rest, against torch's groups.
#include "trireme/train/parameter_groups.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "trireme/optim/learning_rate.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Groups = std::vector<config::ParameterGroup>;

/// Biases have a rate of their own, the first block also another decay, the second only that.
void use_groups(config::Config& config) {
  config.optim.groups = {{.match = "*.bias", .lr = 0.04},
                         {.match = "h.0.*", .lr = 0.002, .weight_decay = 0.3},
                         {.match = "h.1.attn.*", .weight_decay = 0},
                         {.match = "wpe.*", .lr = 0}};
  config.optim.weight_decay = 0.05;
  config.optim.schedule = config::RateSchedule::Linear;
  config.optim.final = 0.5;
}

Case grouped(Case c, config::OptimizerKind kind = config::OptimizerKind::AdamW) {
  c.otherwise = fmt::format("groups of {}", to_string(kind));
  c.change = [kind](config::Config& config) {
    use_groups(config);
    config.optim.kind = kind;
  };
  return c;
}

/// What the groups above say, written out by hand.
struct Hand {
  double rate, decay;
};
Hand by_hand(const std::string& name, const at::Tensor& weight, double rate) {
  const auto ends = [&](const char* with) { return name.ends_with(with); };
  const double decay = weight.dim() < 2 ? 0 : 0.05;
  if (ends(".bias")) return {rate * 4, decay};
  if (name.starts_with("h.0.")) return {rate * 0.2, weight.dim() < 2 ? 0 : 0.3};
  if (name.starts_with("h.1.attn.")) return {rate, 0};
  if (name.starts_with("wpe.")) return {0, decay};
  return {rate, decay};
}

std::unique_ptr<torch::optim::Optimizer> torchs(bool adam,
                                                const std::vector<nn::Parameter>& parameters) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const nn::Parameter& one : parameters) {
    const Hand hand = by_hand(one.name, one.tensor, 0.01);
    std::unique_ptr<torch::optim::OptimizerOptions> options;
    if (adam)
      options = std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(hand.rate).betas({0.9, 0.95}).weight_decay(hand.decay));
    else
      options = std::make_unique<torch::optim::SGDOptions>(
          torch::optim::SGDOptions(hand.rate).momentum(0.9).weight_decay(hand.decay));
    groups.emplace_back(std::vector{one.tensor}, std::move(options));
  }
  if (adam) return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01));
  return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.01));
}

TEST(ParameterGroups, GiveTorchsNumbers) {
  at::set_num_threads(1);
  for (const auto kind : {config::OptimizerKind::AdamW, config::OptimizerKind::Sgd}) {
    Case c = grouped({.micro = 8}, kind);
    const Outcome ours = train(c, mesh_of_one());
    const config::Config config = config_of(c);
    const auto model = models::make_model(config, mesh_of_one());
    model->to(torch::kDouble);
    nn::initialize(*model, static_cast<uint64_t>(config.run.seed));
    const auto parameters = nn::parameters_of(*model);
    const auto optimizer = torchs(kind == config::OptimizerKind::AdamW, parameters);
    const optim::LearningRateSchedule schedule{.kind = optim::LearningRateSchedule::Kind::Linear,
                                               .peak = 0.01,
                                               .steps = kSteps,
                                               .final = 0.5};
    const Labelled data(c);
    const data::Order order(3, data.size(), c.batch);
    for (int step = 1; step <= kSteps; ++step) {
      const auto batch = data::Loader::read(data, order, 0, 1, step - 1);
      auto where = std::make_shared<nn::Where>();
      where->step = step;
      where->sample_ids = batch.sample_ids;
      model->zero_grad();
      const nn::Loss loss = model->loss({batch.inputs, where}, batch.targets);
      (loss.sum / loss.weight).backward();
      std::vector<at::Tensor> each;  // model->parameters() has a tied weight twice
      for (const nn::Parameter& one : parameters) each.push_back(one.tensor);
      torch::nn::utils::clip_grad_norm_(each, config.optim.clip);
      for (std::size_t i = 0; i < parameters.size(); ++i)
        optimizer->param_groups()[i].options().set_lr(
            by_hand(parameters[i].name, parameters[i].tensor, schedule.at(step)).rate);
      optimizer->step();
      EXPECT_NEAR(ours.losses[static_cast<std::size_t>(step - 1)],
                  (loss.sum / loss.weight).item<double>(), kSame);
    }
    for (const nn::Parameter& one : parameters)
      EXPECT_LE((ours.weights.at(one.name) - one.tensor).abs().max().item<double>(), kSame)
          << one.name;
  }
}

TEST(ParameterGroups, AreTheSameOnEveryMesh) {
  using config::ShardedState;
  const Case cases[] = {{.replica = 2, .tensor = 2},
                        {.shard = 3, .what = ShardedState::Optimizer},
                        {.shard = 2, .tensor = 2, .what = ShardedState::Gradients},
                        {.shard = 4},
                        {.replica = 2, .pipe = 2, .schedule = "zb-h1"},
                        {.shard = 2, .pipe = 2}};
  for (const Case& c : cases) check(grouped(c));
  check(grouped({.shard = 2, .tensor = 2}, config::OptimizerKind::Sgd));
}

TEST(ParameterGroups, OfRateZeroStayWhereTheyAre) {
  const Outcome after = train(grouped({}), mesh_of_one());
  const auto model = models::make_model(config_of(grouped({})), mesh_of_one());
  model->to(torch::kDouble);
  nn::initialize(*model, 1);
  EXPECT_TRUE(after.weights.at("wpe.weight").equal(model->named_parameters()["wpe.weight"]));
  EXPECT_FALSE(after.weights.at("wte.weight").equal(model->named_parameters()["wte.weight"]));
}

TEST(ParameterGroups, ThatHaveNothingAreRefused) {
  const auto model = models::make_model(config_of({}), mesh_of_one());
  const auto all = nn::parameters_of(*model);
  const auto refusal = [&](const Groups& groups) {
    config::Optim keys;
    keys.groups = groups;
    train::check_groups(keys, all);
  };
  EXPECT_THAT([&] { refusal({{.match = "h.7.*"}}); },
              ThrowsMessage<ConfigError>(HasSubstr("optim.groups[0]: match = \"h.7.*\" matches no "
                                                   "parameter; there are wte.weight, ...")));
  EXPECT_THAT(
      [&] {
        refusal({{.match = "h.*"}, {.match = "h.0.ln_1.*"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("optim.groups[1]: match = \"h.0.ln_1.*\" matches "
                                           "only parameters that an earlier group has")));
  refusal({{.match = "h.0.ln_1.*"}, {.match = "h.*"}});
}

}  // namespace
}  // namespace trireme::test
