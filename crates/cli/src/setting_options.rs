//! Options made of the [table of settings](tiexec_core::setting).

use std::marker::PhantomData;

use clap::error::Error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tiexec_core::config::Settings;
use tiexec_core::setting::{At, Group, Setting, Takes};
use tiexec_engine::follow::Patterns;

/// The headings of the options.
pub(crate) const fn heading(group: Group) -> &'static str {
    match group {
        Group::Memory => "Text and memory",
        Group::AfterStart => "After the start",
        Group::Failures => "Failures",
        Group::Output => "Output",
    }
}

/// A command that has options for settings.
pub trait Place {
    /// The settings that it has.
    const AT: At;
}

/// `tiexec PROGRAM`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfLaunch;

/// `tiexecctl attach`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfAttach;

impl Place for OfLaunch {
    const AT: At = At::Launch;
}

impl Place for OfAttach {
    const AT: At = At::Attach;
}

/// The settings that the options of a command say: keys, each with its value if it has one.
#[derive(Clone, Debug, Default)]
pub struct SettingOptions<P> {
    said: Vec<(&'static str, Option<String>)>,
    of: PhantomData<P>,
}

impl<P> SettingOptions<P> {
    fn of(said: Vec<(&'static str, Option<String>)>) -> Self {
        Self { said, of: PhantomData }
    }

    /// Adds more, as if there were options for it.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Self {
        self.said.extend(more);
        self
    }

    /// Returns those that another command has, too.
    pub fn at<Q: Place>(&self) -> SettingOptions<Q> {
        let has = |(key, _): &&(&str, _)| Setting::is_at(Q::AT, key);
        SettingOptions::of(self.said.iter().filter(has).cloned().collect())
    }

    /// Returns whether there is an option for this setting.
    pub fn say(&self, key: &str) -> bool {
        self.said.iter().any(|(said, _)| *said == key)
    }

    /// Puts what was said into the settings of weaker sources.
    pub fn put_into(&self, settings: &mut Settings) {
        let said = self.said.iter().map(|(key, value)| (*key, value.as_deref()));
        // The parser has checked each value.
        let _none = settings.take_options(said);
    }

    /// Returns the settings as if there were no other source.
    pub fn alone(&self) -> Settings {
        let mut settings = Settings::default();
        self.put_into(&mut settings);
        settings
    }
}

/// Returns the option of a setting.
fn option(setting: &'static Setting, place: At) -> Arg {
    let Setting { key, short, takes, group, help, help_for_attach, not_with, only_with, .. } =
        *setting;
    let help = help_for_attach.filter(|_| place == At::Attach).unwrap_or(help);
    let has = |other: &&&str| Setting::is_at(place, other);
    let arg = Arg::new(key)
        .long(key)
        .help(help)
        .help_heading(heading(group))
        .conflicts_with_all(not_with.iter().filter(has))
        .action(ArgAction::Set);
    let arg = short.into_iter().fold(arg, Arg::short);
    let arg = only_with.into_iter().fold(arg, Arg::requires);
    let parse = move |text: &str| parse(setting, text);
    match takes {
        Takes::Flag => arg.action(ArgAction::SetTrue),
        Takes::Value(name) => arg.value_name(name).value_parser(parse),
        Takes::ValueAfterEquals(name) => {
            arg.value_name(name).require_equals(true).value_parser(parse)
        }
        Takes::MaybeValue(name) => {
            let arg = arg.value_name(name).require_equals(true).num_args(0..=1);
            arg.default_missing_value("")
        }
        Takes::List(name) => arg.value_name(name).action(ArgAction::Append).value_parser(parse),
    }
}

fn parse(setting: &Setting, text: &str) -> Result<String, String> {
    let mut alone = Settings::default();
    alone.take_setting(setting.key, text).map_err(|malformed| malformed.problem)?;
    let _valid = Patterns::new(&alone.only, &alone.except)?;
    Ok(text.to_owned())
}

impl<P: Place> Args for SettingOptions<P> {
    fn augment_args(command: Command) -> Command {
        command.args(Setting::at(P::AT).map(|setting| option(setting, P::AT)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Place> FromArgMatches for SettingOptions<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut said = Vec::new();
        for Setting { key, takes, .. } in Setting::at(P::AT) {
            if matches.value_source(key) != Some(ValueSource::CommandLine) {
                continue;
            }
            if *takes == Takes::Flag {
                said.push((*key, None));
                continue;
            }
            let values = matches.get_many::<String>(key).unwrap_or_default();
            said.extend(values.map(|value| (*key, Some(value.clone()))));
        }
        Ok(Self::of(said))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.said.extend(Self::from_arg_matches(matches)?.said);
        Ok(())
    }
}
