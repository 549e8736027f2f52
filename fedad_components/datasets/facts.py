"""The paper's six sources and two targets: names of files and columns, published counts, licence and access.

The paper names kinds of images more often than releases. Chosen here: for chest X-rays both ChestX-ray14 and CheXpert
(with them the sources are six), BreaKHis for breast histology, the labelled images of HyperKvasir for endoscopy, and
Camelyon17 as the WILDS benchmark cuts it into patches.
"""

from __future__ import annotations

from fedad_components.datasets.spec import Count, DataSetSpec, Label, Patches

CHESTXRAY14 = DataSetSpec(
    name="chestxray14",
    title="NIH ChestX-ray14",
    role="source",
    url="https://nihcc.app.box.com/v/ChestXray-NIHCC",
    licence="no restriction on use; name the NIH Clinical Center and cite Wang et al., CVPR 2017",
    access="open",
    note="Findings were mined from reports. Label: normal if there is no finding, else abnormal.",
    tables={"all": ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")},
    columns=("Image Index", "Finding Labels", "Patient ID"),
    folders=("images", "images_*/images"),
    path="{Image Index}",
    patient="{Patient ID}",
    label=Label(column="Finding Labels", classes={"No Finding": "normal"}, other="abnormal"),
    lists={"train": "train_val_list.txt", "test": "test_list.txt"},
    parts={"train": "train", "test": "test"},
    images=Count.of(112_120),
    counts={"split": {"train": 86_524, "test": 25_596}},
    distinct={"Patient ID": Count.of(30_805)},
)

CHEXPERT = DataSetSpec(
    name="chexpert",
    title="CheXpert",
    role="source",
    url="https://stanfordmlgroup.github.io/competitions/chexpert/",
    licence="Stanford University Dataset Research Use Agreement: research only, no redistribution",
    access="after registration and agreement",
    note="Frontal and lateral views. The test part is the 234 images that radiologists read.",
    tables={"train": ("train.csv",), "valid": ("valid.csv",)},
    columns=("Path", "No Finding"),
    parse=("Path", r"CheXpert-v1\.0(-small)?/(?P<inside>(train|valid)/(?P<patient>patient\d+)/[^/]+/[^/]+)"),
    path="{inside}",
    patient="{patient}",
    label=Label(column="No Finding", classes={"1.0": "normal", "1": "normal"}, other="abnormal"),
    parts={"train": "train", "valid": "test"},
    images=Count.of(223_648),
    counts={"split": {"train": 223_414, "valid": 234}},
    distinct={"patient": Count.of(64_740)},
)

PATCHCAMELYON = DataSetSpec(
    name="patchcamelyon",
    title="PatchCamelyon (PCam)",
    role="source",
    url="https://github.com/basveeling/pcam",
    licence="CC0 1.0",
    access="open",
    note="From Camelyon16, two of whose hospitals also gave slides to Camelyon17: with this source, that target is not "
    "wholly unseen. Told is the slide, not the patient.",
    tables={split: (f"camelyonpatch_level_2_split_{split}_meta.csv",) for split in ("train", "valid", "test")},
    columns=("wsi",),
    patches=Patches(
        images="camelyonpatch_level_2_split_{split}_x.h5", labels="camelyonpatch_level_2_split_{split}_y.h5", side=96
    ),
    path="{split}/{row}.png",
    patient="{wsi}",
    label=Label(column="y", classes={"0": "normal", "1": "tumour"}),
    parts={"train": "train", "valid": "train", "test": "test"},
    images=Count.of(327_680),
    counts={"split": {"train": 262_144, "valid": 32_768, "test": 32_768}},
)

BREAKHIS = DataSetSpec(
    name="breakhis",
    title="BreaKHis 1.0",
    role="source",
    url="https://web.inf.ufpr.br/vri/databases/breast-cancer-histopathological-database-breakhis/",
    licence="CC BY 4.0",
    access="open",
    note="Patients are told apart by the number in the slide's name, without its letters: fewer than the 82 published, "
    "so that none is in both parts. 14-13412, for one, is among the ductal and the lobular carcinomas.",
    tree="histology_slides/breast/*/SOB/*/*/*/*.png",
    parse=(
        "path",
        r"histology_slides/breast/(?P<class>benign|malignant)/SOB/\w+/"
        r"(?P<slide>SOB_[BM]_[A-Z]+_(?P<patient>\d+-\d+)[A-Z]*)/(?P<zoom>\d+X)/[^/]+\.png",
    ),
    path="{path}",
    patient="{patient}",
    label=Label(column="class"),
    images=Count.of(7_909),
    counts={
        "class": {"benign": 2_480, "malignant": 5_429},
        "zoom": {"40X": 1_995, "100X": 2_081, "200X": 2_013, "400X": 1_820},
    },
    distinct={"slide": Count.of(82)},
)

HAM10000 = DataSetSpec(
    name="ham10000",
    title="HAM10000",
    role="source",
    url="https://doi.org/10.7910/DVN/DBW86T",
    licence="CC BY-NC 4.0",
    access="open",
    note="Told is the lesion, not the patient.",
    tables={"all": ("HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab")},
    columns=("image_id", "lesion_id", "dx"),
    folders=("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images", "."),
    path="{image_id}.jpg",
    patient="{lesion_id}",
    label=Label(column="dx"),
    images=Count.of(10_015),
    counts={"dx": {"akiec": 327, "bcc": 514, "bkl": 1_099, "df": 115, "mel": 1_113, "nv": 6_705, "vasc": 142}},
    distinct={"lesion_id": Count.of(7_470)},
)

HYPERKVASIR = DataSetSpec(
    name="hyperkvasir",
    title="HyperKvasir, labelled images",
    role="source",
    url="https://osf.io/mh9sj/",
    licence="open for research and education; competitions and commercial use by written permission",
    access="open",
    note="No patient is told: images of one patient may be in both parts, so figures on its test part are optimistic.",
    tables={"all": ("labeled-images/image-labels.csv",)},
    columns=("Video file", "Finding"),
    folders=("labeled-images/*/*/*",),
    path="{Video file}.jpg",
    label=Label(column="Finding"),
    images=Count.of(10_662),
    distinct={"Finding": Count.of(23)},
)

PADCHEST = DataSetSpec(
    name="padchest",
    title="PadChest",
    role="target",
    url="https://bimcv.cipf.es/bimcv-projects/padchest/",
    licence="PadChest Dataset Research Use Agreement: research only, no redistribution",
    access="after registration and agreement",
    note="The table also holds reports and dates of birth: they are not kept. Label: normal if that is the only label, "
    "abnormal otherwise, none for images labelled unusable or not at all. All projections are used.",
    tables={"all": ("PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv",)},
    columns=("ImageID", "ImageDir", "PatientID", "Labels"),
    folders=(".", "images"),
    path="{ImageDir}/{ImageID}",
    patient="{PatientID}",
    label=Label(
        column="Labels",
        classes={
            "['normal']": "normal",
            "['exclude']": None,
            "['suboptimal study']": None,
            "['unchanged']": None,
            "[]": None,
            "": None,
        },
        other="abnormal",
    ),
    images=Count(least=160_000, most=161_000),
    distinct={"PatientID": Count(least=67_000, most=68_000)},
)

CAMELYON17 = DataSetSpec(
    name="camelyon17",
    title="Camelyon17-WILDS 1.0",
    role="target",
    url="https://wilds.stanford.edu/datasets/#camelyon17",
    licence="CC0 1.0",
    access="open",
    note="One pair of entries for each of the five hospitals, numbered as in WILDS (2 is its test hospital, 1 its "
    "validation hospital). Each hospital is split by patient, since the paper fits the probe on the target's own "
    "training part.",
    tables={"all": ("metadata.csv",)},
    columns=("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center"),
    path="patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
    patient="{patient}",
    label=Label(column="tumor", classes={"0": "normal", "1": "tumour"}),
    site="center",
    images=Count.of(455_954),
    counts={"center": {"0": 59_436, "1": 34_904, "2": 85_054, "3": 129_838, "4": 146_722}},
    distinct={"slide": Count.of(50)},
)

SPECS: dict[str, DataSetSpec] = {
    spec.name: spec
    for spec in (CHESTXRAY14, CHEXPERT, PATCHCAMELYON, BREAKHIS, HAM10000, HYPERKVASIR, PADCHEST, CAMELYON17)
}
"""By name, sources first"""
