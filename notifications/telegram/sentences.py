"""What the bot says, in the languages it speaks; a job's errors by their code.

English is what the error itself says, but where that speaks of what only the REST door has.
"""

from __future__ import annotations

ENGLISH, RUSSIAN = "en", "ru"

#: What is no error's.
SAYINGS: dict[str, dict[str, str]] = {
    "no_speech": {
        ENGLISH: "Nothing was said in this recording.",
        RUSSIAN: "В этой записи никто ничего не говорит.",
    },
    "whole_text": {
        ENGLISH: "The whole text, and below it the same with times.",
        RUSSIAN: "Весь текст, а ниже он же с отметками времени.",
    },
    "picture_ready": {ENGLISH: "The picture is ready.", RUSSIAN: "Картинка готова."},
    "kept": {ENGLISH: "The file is kept.", RUSSIAN: "Файл сохранён."},
    "received": {ENGLISH: "Received.", RUSSIAN: "Принято."},
}

#: By the code of an error; what is not here in English is what the error says.
ERRORS: dict[str, dict[str, str]] = {
    "error": {RUSSIAN: "С этим файлом что-то пошло не так."},
    "empty_file": {RUSSIAN: "Файл пуст. Отправьте его ещё раз: возможно, он не успел скопироваться."},
    "file_too_large": {RUSSIAN: "Файл больше, чем принимает сервис. Отправьте файл поменьше."},
    "too_large_for_bot": {
        RUSSIAN: "Telegram не отдаёт ботам файлы такого размера. Отправьте файл поменьше или его часть."
    },
    "not_fetched": {RUSSIAN: "Не удалось получить файл из Telegram. Отправьте его ещё раз."},
    "unsupported_type": {
        ENGLISH: "This kind of file is not supported. Send a picture, a recording or a video.",
        RUSSIAN: "Такие файлы не поддерживаются. Отправьте картинку, запись или видео.",
    },
    "pipeline_unavailable": {
        ENGLISH: "Files of this kind are not worked on here. Send one of another kind.",
        RUSSIAN: "Такие файлы здесь не обрабатываются. Отправьте файл другого вида.",
    },
    "digest_mismatch": {RUSSIAN: "Файл пришёл не таким, каким был отправлен. Отправьте его ещё раз."},
    "too_many_pixels": {RUSSIAN: "В картинке больше точек, чем принимает сервис. Отправьте её уменьшенной."},
    "no_audio_stream": {RUSSIAN: "В этом файле нет звука. Отправьте запись со звуковой дорожкой."},
    "empty_audio": {
        RUSSIAN: "Запись пуста: у неё нет длительности. Запишите ещё раз и отправьте, когда она сохранится."
    },
    "audio_too_long": {RUSSIAN: "Запись длиннее, чем принимает сервис. Отправьте её частями."},
    "bad_file": {RUSSIAN: "Файл повреждён или неполон, прочитать его не удалось. Отправьте целую копию."},
    "storage_unavailable": {RUSSIAN: "Хранилище сейчас недоступно. Попробуйте позже."},
    "object_missing": {RUSSIAN: "Сохранённый файл не нашёлся. Обратитесь к тому, кто ведёт сервис."},
    "object_corrupt": {RUSSIAN: "Сохранённый файл повреждён. Обратитесь к тому, кто ведёт сервис."},
    "outcome_unknown": {
        ENGLISH: "The service could not confirm that it has the file. Send it again.",
        RUSSIAN: "Сервис не смог подтвердить, что файл у него. Отправьте его ещё раз.",
    },
    "idempotency_key_reused": {
        ENGLISH: "Another file was accepted for this message before. Send it in a new message.",
        RUSSIAN: "По этому сообщению уже принят другой файл. Отправьте его новым сообщением.",
    },
    "deleted": {
        ENGLISH: "This file was accepted before and then deleted. Send it in a new message.",
        RUSSIAN: "Этот файл уже был принят, а потом удалён. Отправьте его новым сообщением.",
    },
    "key_taken": {RUSSIAN: "С этим файлом что-то пошло не так. Отправьте его ещё раз."},
    "internal_error": {RUSSIAN: "При обработке файла что-то пошло не так. Тот, кто ведёт сервис, об этом узнает."},
    "time_limit": {RUSSIAN: "Обработка файла заняла слишком много времени. Отправьте файл поменьше или попроще."},
    "memory_limit": {RUSSIAN: "Для обработки файла нужно больше памяти, чем можно. Отправьте файл поменьше."},
    "crashed": {RUSSIAN: "На этом файле остановилась программа, которая его читает. Отправьте другую его версию."},
    "interrupted": {RUSSIAN: "Обработка файла была прервана. Отправьте его ещё раз."},
    "worker_lost": {
        RUSSIAN: "Этот файл несколько раз остановил программу, которая с ним работает. Отправьте другую его версию."
    },
    "cancelled": {RUSSIAN: "Файл удалён раньше, чем работа была закончена. Отправьте его ещё раз."},
    "original_gone": {RUSSIAN: "Оригинал больше не хранится. Отправьте файл ещё раз."},
    "outage": {RUSSIAN: "Сервис целый день не мог достучаться до хранилища. Отправьте файл ещё раз."},
}


def told(saying: str, language: str) -> str:
    return SAYINGS[saying][_spoken(language)]


def explained(code: str, sentence: str, language: str) -> str:
    """What an error means to its sender; `sentence` is how the error itself puts it, in English."""
    return ERRORS.get(code, {}).get(_spoken(language), sentence)


def _spoken(language: str) -> str:
    """`language` is an IETF tag, as Telegram gives it."""
    return RUSSIAN if language.lower().partition("-")[0] == RUSSIAN else ENGLISH
