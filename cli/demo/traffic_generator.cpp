#include "cli/demo/traffic_generator.h"

#include <array>
#include <sstream>

#include "base/json.h"
#include "base/philox.h"

namespace specdec::cli {

namespace {

// Words of one topic by part of speech, separated by spaces: nouns, verbs, adjectives.
struct Topic {
  const char* name;
  const char* nouns;
  const char* verbs;
  const char* adjectives;
};

struct Domain {
  const char* name;
  std::array<Topic, 4> topics;
};

const std::array<Domain, 4> kDomains = {{
    {"support",
     {{{"billing", "invoice refund charge receipt account payment balance card",
        "verify settle dispute credit issue waive", "pending monthly duplicate recent unpaid partial"},
       {"network", "router cable modem signal adapter antenna firmware port",
        "restart update reset reconnect ping replace", "weak wireless dropped blinking wired stable"},
       {"delivery", "parcel courier label depot address package box driver",
        "track ship reroute return collect deliver", "late damaged sealed heavy missing insured"},
       {"login", "password token session profile browser cookie code email", "confirm unlock change revoke enter clear",
        "expired secure wrong temporary hidden valid"}}}},
    {"kitchen",
     {{{"bread", "dough flour yeast loaf crust starter oven tin", "knead proof bake fold score rest",
        "warm soft sour golden sticky floured"},
       {"soup", "broth onion carrot pot lentil celery ladle stock", "simmer chop skim season stir boil",
        "clear salty thick smoky gentle rich"},
       {"salad", "lettuce tomato cucumber dressing vinegar bowl herb olive", "toss slice drizzle rinse chill tear",
        "crisp fresh green tangy bitter raw"},
       {"dessert", "cream sugar berry vanilla custard cake glaze chocolate", "whip melt pour dust freeze spread",
        "sweet dark frozen fluffy bright silky"}}}},
    {"travel",
     {{{"mountain", "trail summit hut ridge valley glacier guide rope", "climb hike descend camp rest scout",
        "steep snowy rocky narrow high windy"},
       {"coast", "beach ferry harbour island reef boat lighthouse tide", "sail swim dive row anchor surf",
        "sandy calm blue salty quiet sunny"},
       {"city", "museum station market tram square hotel bridge gallery", "visit cross tour book photograph explore",
        "crowded old famous central lively grand"},
       {"desert", "dune camel oasis tent canyon caravan well star", "ride wander shelter gaze drink travel",
        "dry hot golden endless silent remote"}}}},
    {"workshop",
     {{{"wood", "plank chisel saw joint grain bench glue shelf", "sand cut plane clamp varnish carve",
        "smooth oak flat solid rough straight"},
       {"metal", "bolt drill weld plate hinge bracket file anvil", "grind bend weld solder polish rivet",
        "steel rusty hard sharp heavy brass"},
       {"cloth", "fabric needle thread hem seam button lining zip", "sew stitch pin iron fold trim",
        "cotton loose woven blue thin double"},
       {"paint", "brush roller primer wall coat canvas frame palette", "mix paint mask scrape blend dry",
        "matt glossy white wet even pale"}}}},
}};

// Sentence patterns of an answer. N, V and A stand for a noun, verb or adjective of the topic. A lower-case letter in
// braces stands for a word of the list with this letter (list_of). The rest is literal.
const std::array<const char*, 10> kFirstFrames = {
    "{o} V {d} A N {p} {d} N .",
    "{o} V {d} N and V {d} A N .",
    "{y} V {d} N {p} {d} A N {t} .",
    "V {d} A , A N {b} you V {d} N .",
    "If {d} N {s} {m} A , V {d} N {p} {d} N .",
    "{d} A N {m} A , so V {d} N {t} .",
    "{y} V {d} N , {d} N and {d} A N .",
    "{b} the N {m} A , V {d} A N {p} {d} N .",
    "{k} the N {m} A {b} you V it .",
    "{o} V it {p} {d} A N or {d} N {t} .",
};
const std::array<const char*, 10> kUpdatedFrames = {
    "Step : N ( A ) -> V .",        "Note : A N , A N ; V both {t} .",       "Step : V N + N -> A N .",
    "Tip : never V A N {p} A N !",  "Check : N {m} A ? V N : V N .",         "Step : {p} N -> V , V , then V N .",
    "Note : N / N / N {s} A {t} .", "Tip : A N first , N second , N last .", "Check : A ? A ? V N {p} N !",
    "Goal : A N {p} A N .",
};
const std::array<const char*, 4> kQuestions = {
    "How do I V the A N {p} the N ?",
    "My N {m} A and the N {m} A . What should I do ?",
    "Can you help me V a N {p} a A N ?",
    "I want to V {d} N {t} . Which N do I need ?",
};

const char* list_of(char name) {
  switch (name) {
    case 'o':
      return "First Next Then Now Finally Slowly";
    case 'd':
      return "the the the a this your each one";
    case 'p':
      return "with near under over into beside without from";
    case 'y':
      return "Please Always Carefully Usually You_should";
    case 't':
      return "today again twice at_once for_a_while if_you_can every_time";
    case 'b':
      return "before after while until once";
    case 's':
      return "still often always never";
    case 'm':
      return "is looks feels stays seems";
    case 'k':
      return "Check_that Make_sure See_if Notice_when";
  }
  throw Error(ErrorKind::kInternal, std::string("demo grammar: no list named ") + name);
}

std::vector<std::string> words(const char* text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    for (char& c : word)
      if (c == '_') c = ' ';
    result.push_back(word);
  }
  return result;
}

class Writer {
 public:
  Writer(const Topic& topic, PhiloxStream& random, bool updated) : topic_(topic), random_(random), updated_(updated) {}

  std::string sentence(const char* frame) {
    std::string text;
    std::istringstream stream(frame);
    for (std::string item; stream >> item;) {
      const std::string word = expand(item);
      const bool closes =
          word == "." || word == "," || word == "?" || word == "!" || word == ";" || word == ":" || word == ")";
      if (!text.empty() && !(closes) && text.back() != '(') text += ' ';
      text += word;
    }
    if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text;
  }

 private:
  std::string expand(const std::string& item) {
    if (item == "N") return pick(topic_.nouns);
    if (item == "V") return pick(topic_.verbs);
    if (item == "A") return pick(topic_.adjectives);
    if (item.size() == 3 && item[0] == '{') return pick(list_of(item[1]));
    return item;
  }

  // Picks a word of a list at random. In the first edition a word has the weight 4 + the number of words after it, so
  // earlier words are likelier. In the updated edition the weight is 4 + the number of words before it.
  std::string pick(const char* list) {
    const std::vector<std::string> all = words(list);
    double total = 0;
    for (size_t i = 0; i < all.size(); ++i) total += weight(i, all.size());
    double u = random_.uniform() * total;
    for (size_t i = 0; i < all.size(); ++i)
      if ((u -= weight(i, all.size())) <= 0) return all[i];
    return all.back();
  }
  double weight(size_t i, size_t n) const { return 4.0 + static_cast<double>(updated_ ? i : n - 1 - i); }

  const Topic& topic_;
  PhiloxStream& random_;
  bool updated_;
};

}  // namespace

const std::vector<std::string>& demo_domains() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Domain& d : kDomains) result.emplace_back(d.name);
    return result;
  }();
  return names;
}

DemoConversation demo_conversation(uint64_t seed, int64_t index, DemoEdition edition) {
  const bool updated = edition == DemoEdition::kUpdated;
  PhiloxStream random(seed, static_cast<uint64_t>(index) * 2 + updated);
  const Domain& domain = kDomains[random.below(kDomains.size())];
  const Topic& topic = domain.topics[random.below(domain.topics.size())];
  Writer asks(topic, random, false);
  Writer answers(topic, random, updated);
  DemoConversation c;
  c.id = "demo-" + std::to_string(seed) + "-" + std::to_string(index);
  c.domain = domain.name;
  c.time = 1767225600 + index * 20;  // 2026-01-01, three requests a minute
  c.question = asks.sentence(kQuestions[random.below(kQuestions.size())]) + " (" + topic.name + ")";
  const auto& frames = updated ? kUpdatedFrames : kFirstFrames;
  const uint64_t sentences = 4 + random.below(5);
  for (uint64_t i = 0; i < sentences; ++i) {
    if (i) c.answer += ' ';
    c.answer += answers.sentence(frames[random.below(frames.size())]);
  }
  return c;
}

std::string to_chat_row(const DemoConversation& c) {
  const Json row = {
      {"id", c.id},
      {"domain", c.domain},
      {"created", c.time},
      {"messages", {{{"role", "user"}, {"content", c.question}}, {{"role", "assistant"}, {"content", c.answer}}}}};
  return row.dump();
}

}  // namespace specdec::cli
