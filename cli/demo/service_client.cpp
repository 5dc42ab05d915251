#include "cli/demo/service_client.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "cli/demo/traffic_client.h"

namespace specdec::cli {

namespace {

Json request_of(const ServicePrompt& prompt, int64_t index) {
  return {{"messages", prompt.messages},
          {"temperature", prompt.temperature},
          {"seed", index},
          {"max_tokens", prompt.max_tokens},
          {"metadata", {{"domain", prompt.domain}}}};
}

// Sends one request and adds its figures.
void send(data::OpenAiClient& client, const Json& request, AnswerFigures& figures) {
  if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
  const SystemClock clock;
  const double start = clock.seconds();
  const Json answer = chat(client, request);
  ++figures.answers;
  figures.tokens += answer.at("usage").at("completion_tokens").get<double>();
  figures.seconds += clock.seconds() - start;
}

}  // namespace

std::map<std::string, AnswerFigures> send_for(const std::string& url, const ServicePrompts& prompts, uint64_t seed,
                                              int64_t first, int together, double seconds) {
  const SystemClock clock;
  const double end = clock.seconds() + seconds;
  std::atomic<int64_t> next{first};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr failure;
  std::map<std::string, AnswerFigures> all;
  const auto work = [&] {
    std::map<std::string, AnswerFigures> own;
    try {
      data::OpenAiClient client = connect(url);
      while (!failed && clock.seconds() < end) {
        const int64_t index = next++;
        const ServicePrompt prompt = prompts.at(seed, index);
        send(client, request_of(prompt, index), own[prompt.domain]);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      failed = true;
    }
    const std::lock_guard lock(mutex);
    for (const auto& [domain, figures] : own) {
      all[domain].answers += figures.answers;
      all[domain].tokens += figures.tokens;
      all[domain].seconds += figures.seconds;
    }
  };
  {
    std::vector<std::jthread> threads;  // joined at the end of the block, also if one cannot be started
    for (int i = 0; i < together; ++i) threads.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  return all;
}

std::vector<std::map<std::string, AnswerFigures>> send_in_turns(const std::vector<std::string>& urls,
                                                                const ServicePrompts& prompts, uint64_t seed,
                                                                int64_t first, int64_t count) {
  std::vector<data::OpenAiClient> clients;
  for (const std::string& url : urls) clients.push_back(connect(url));
  std::vector<std::map<std::string, AnswerFigures>> figures(urls.size());
  for (int64_t i = first; i < first + count; ++i) {
    const ServicePrompt prompt = prompts.at(seed, i);
    for (size_t turn = 0; turn < urls.size(); ++turn) {
      const size_t server = (turn + static_cast<size_t>(i)) % urls.size();
      send(clients[server], request_of(prompt, i), figures[server][prompt.domain]);
    }
  }
  return figures;
}

std::string greedy_answer(const std::string& url, const ServicePrompt& prompt) {
  data::OpenAiClient client = connect(url);
  Json request = request_of(prompt, 0);
  request["temperature"] = 0;
  return chat(client, request).at("choices").at(0).at("message").at("content").get<std::string>();
}

}  // namespace specdec::cli
