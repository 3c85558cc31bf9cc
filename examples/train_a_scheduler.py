"""Train a scheduler for times that vary, and compare it with every baseline."""

import conductor
from conductor.rl.config import ROBUST
from conductor.rl.evaluation import evaluate
from conductor.rl.ppo import train
from conductor.rl.training import start_training
from conductor.variation import UniformNoise

# A few seconds of training; some ten thousand episodes are worth their time.
training = start_training(
    conductor.load_preset("gpt-like"), UniformNoise(0.3), ROBUST, num_episodes=512, seed=0
)
train(training, on_update=lambda now: print(f"{now.episodes} episodes: {now.best_score:.1f} ms"))

result = evaluate(
    training.source.instance, training.best_policy(), training.source.variation, draws=200, seed=0
)
for name in sorted(result.makespan_ms, key=result.mean):
    low, high = result.ci95(name)
    print(f"{name:15} {result.mean(name):.1f} ms (95 % interval {low:.1f} to {high:.1f})")
